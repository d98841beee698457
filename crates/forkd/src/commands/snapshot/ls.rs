//! `forkd snapshot ls`, `forkd images`.

use forkd_api::snapshot::{Snapshot, SnapshotStatus};

use crate::arguments::SnapshotLsOptions;
use crate::commands::{lines, print_value, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::{ago, bytes};
use crate::table::{Side, Table};

pub fn run(options: &SnapshotLsOptions) -> Result<Exit, CliError> {
    let snapshots = with_daemon(&options.daemon, async |client| Ok(client.snapshots().await?))?;
    print_value(&options.output, &snapshots, || match options.quiet {
        true => lines(snapshots.iter().map(|snapshot| &snapshot.tag)),
        false => render(&snapshots),
    })?;
    Ok(Exit::Success)
}

fn render(snapshots: &[Snapshot]) -> String {
    let mut table = Table::new([
        ("TAG", Side::Left),
        ("STATUS", Side::Left),
        ("AGE", Side::Right),
        ("VCPUS", Side::Right),
        ("MEMORY", Side::Right),
        ("DISK", Side::Right),
        ("ON DISK", Side::Right),
        ("PARENT", Side::Left),
        ("FROM", Side::Left),
    ]);
    for snapshot in snapshots {
        let size = snapshot.size.memory_bytes.saturating_add(snapshot.size.disk_bytes);
        table.row([
            snapshot.tag.clone(),
            status(snapshot.status).into(),
            ago(snapshot.created_at_unix),
            snapshot.vcpus.to_string(),
            bytes(snapshot.memory_mib << 20),
            bytes(snapshot.disk_mib << 20),
            bytes(size),
            snapshot.parent.clone().unwrap_or_else(|| "-".into()),
            origin(snapshot),
        ]);
    }
    table.render()
}

/// What it was made of.
fn origin(snapshot: &Snapshot) -> String {
    match (&snapshot.branched_from, &snapshot.image) {
        (Some(sandbox), _) => sandbox.clone(),
        // A digest is as long as a line; its beginning is enough to find it.
        (None, Some(image)) => image.trim_start_matches("sha256:").chars().take(12).collect(),
        (None, None) => "-".into(),
    }
}

pub fn status(status: SnapshotStatus) -> &'static str {
    match status {
        SnapshotStatus::Live => "live",
        SnapshotStatus::Persisting => "persisting",
        SnapshotStatus::Ready => "ready",
        SnapshotStatus::Failed => "failed",
    }
}
