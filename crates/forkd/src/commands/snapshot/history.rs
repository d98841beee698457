//! `forkd snapshot history`.

use forkd_api::snapshot::{SnapshotHistory, SnapshotHistoryEntry, SnapshotKind};

use super::ls::status;
use crate::arguments::SnapshotInspectOptions;
use crate::commands::{print_value, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{ago, bytes};
use crate::table::{Side, Table};

/// Names in a row.
const MAX_NAMES: usize = 3;

pub fn run(options: &SnapshotInspectOptions) -> Result<Exit, CliError> {
    let history =
        with_daemon(&options.daemon, async |client| Ok(client.snapshot_history(&options.tag).await?))?;
    print_value(&options.output, &history, || render(&history))?;
    Ok(Exit::Success)
}

/// A table whose first column is a tree.
fn render(history: &SnapshotHistory) -> String {
    let mut table = Table::new([
        ("SNAPSHOT", Side::Left),
        ("KIND", Side::Left),
        ("STATUS", Side::Left),
        ("AGE", Side::Right),
        ("DEPTH", Side::Right),
        ("OWN", Side::Right),
        ("SHARED", Side::Right),
        ("NAMES", Side::Left),
    ]);
    for (entry, branch) in history.snapshots.iter().zip(branches(&history.snapshots)) {
        let mark = if entry.tag == history.tag { " *" } else { "" };
        table.row([
            format!("{branch}{}{mark}", entry.tag),
            kind(entry.kind).into(),
            status(entry.status).into(),
            ago(entry.created_at_unix),
            entry.depth.to_string(),
            bytes(entry.own_bytes),
            bytes(entry.shared_bytes),
            some(&entry.names),
        ]);
    }
    table.render()
}

/// The first few: there may be thousands.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(MAX_NAMES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn kind(kind: SnapshotKind) -> &'static str {
    match kind {
        SnapshotKind::Full => "full",
        SnapshotKind::Diff => "diff",
    }
}

/// What is before each name: lines from its parent.
fn branches(entries: &[SnapshotHistoryEntry]) -> Vec<String> {
    // For each ancestor of the entry, whether it has more children below.
    let mut open: Vec<(&str, usize)> = Vec::new();
    let mut lines = Vec::new();
    for entry in entries {
        while open.last().is_some_and(|(tag, _)| Some(*tag) != entry.parent.as_deref()) {
            open.pop();
        }
        if let Some((_, left)) = open.last_mut() {
            *left = left.saturating_sub(1);
        }
        let mut line = String::new();
        for (index, (_, left)) in open.iter().enumerate() {
            let is_parent = index + 1 == open.len();
            line += match (is_parent, *left > 0) {
                (true, true) => "├─ ",
                (true, false) => "└─ ",
                (false, true) => "│  ",
                (false, false) => "   ",
            };
        }
        lines.push(line);
        open.push((&entry.tag, entry.dependents.len()));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_api::snapshot::SnapshotStatus;

    fn entry(tag: &str, parent: Option<&str>, dependents: &[&str]) -> SnapshotHistoryEntry {
        SnapshotHistoryEntry {
            tag: tag.into(),
            names: Vec::new(),
            status: SnapshotStatus::Ready,
            kind: SnapshotKind::Diff,
            depth: 0,
            created_at_unix: 0,
            parent: parent.map(str::to_owned),
            dependents: dependents.iter().map(|&tag| tag.to_owned()).collect(),
            own_bytes: 0,
            shared_bytes: 0,
        }
    }

    #[test]
    fn a_tree_has_lines_from_each_parent_to_its_children() {
        let entries = [
            entry("base", None, &["t"]),
            entry("t", Some("base"), &["a", "c"]),
            entry("a", Some("t"), &["b"]),
            entry("b", Some("a"), &[]),
            entry("c", Some("t"), &[]),
        ];
        assert_eq!(branches(&entries), ["", "└─ ", "   ├─ ", "   │  └─ ", "   └─ "]);
    }
}
