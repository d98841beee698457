//! `forkd cleanup`.

use std::collections::BTreeSet;

use forkd_api::sandbox::{ListSandboxes, Sandbox, SandboxState};
use forkd_api::snapshot::{RemoveSnapshot, Snapshot, SnapshotStatus, UNNAMED_PREFIX};
use serde::Serialize;

use super::{print, print_json, say, with_daemon};
use crate::arguments::CleanupOptions;
use crate::error::{self, CliError};
use crate::exit::Exit;

/// Ended sandboxes and failed snapshots.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
struct Leftovers {
    sandboxes: Vec<String>,
    snapshots: Vec<String>,
    /// Whether they are removed now, or would be.
    removed: bool,
}

pub fn run(options: &CleanupOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let sandboxes = client.sandboxes(&ListSandboxes::default()).await?;
        let mut found = leftovers(&sandboxes, &client.snapshots().await?, options.runs);
        let mut exit = Exit::Success;
        if options.yes {
            found.removed = true;
            let mut tell = |result: Result<(), forkd_client::ClientError>| match result {
                Err(error) if !error.is_not_found() => {
                    error::print(&error.into());
                    exit = Exit::Failure;
                }
                _ => {}
            };
            for id in &found.sandboxes {
                tell(client.remove_sandbox(id).await);
            }
            for tag in &found.snapshots {
                tell(client.remove_snapshot(tag, RemoveSnapshot::default()).await.map(|_| ()));
            }
        }
        if options.output.json {
            print_json(&found)?;
            return Ok(exit);
        }
        let lines = |kind: &str, names: &[String]| {
            names.iter().map(|name| format!("{kind} {name}\n")).collect::<String>()
        };
        print(&(lines("sandbox", &found.sandboxes) + &lines("snapshot", &found.snapshots)))?;
        let count = found.sandboxes.len() + found.snapshots.len();
        match (count, options.yes) {
            (0, _) => say("Nothing to remove."),
            (_, true) => say(&format!("{count} removed.")),
            (_, false) => say(&format!("{count} would be removed; run forkd cleanup --yes to remove them.")),
        }
        Ok(exit)
    })
}

fn leftovers(sandboxes: &[Sandbox], snapshots: &[Snapshot], runs: bool) -> Leftovers {
    let ended = sandboxes.iter().filter(|sandbox| sandbox.state == SandboxState::Ended);
    let used: BTreeSet<&str> = sandboxes
        .iter()
        .filter(|sandbox| sandbox.state != SandboxState::Ended)
        .flat_map(|sandbox| sandbox.branches.iter().chain([&sandbox.snapshot_tag]))
        .map(String::as_str)
        .collect();
    let is_left = |snapshot: &&Snapshot| {
        let unused = snapshot.children.is_empty() && !used.contains(snapshot.tag.as_str());
        snapshot.status == SnapshotStatus::Failed
            || (runs && unused && snapshot.tag.starts_with(UNNAMED_PREFIX) && snapshot.image.is_some())
    };
    Leftovers {
        sandboxes: ended.map(|sandbox| sandbox.id.clone()).collect(),
        snapshots: snapshots.iter().filter(is_left).map(|snapshot| snapshot.tag.clone()).collect(),
        removed: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, tag: &str, state: &str) -> Sandbox {
        serde_json::from_value(serde_json::json!({
            "id": id, "snapshot_tag": tag, "state": state, "created_at_unix": 0, "vcpus": 1, "memory_mib": 64,
            "disk_mib": 1, "branches": [], "metadata": {},
        }))
        .unwrap()
    }

    fn snapshot(tag: &str, status: &str, children: &[&str]) -> Snapshot {
        serde_json::from_value(serde_json::json!({
            "tag": tag, "status": status, "created_at_unix": 0, "children": children, "image": "sha256:1", "vcpus": 1,
            "memory_mib": 64, "disk_mib": 1, "size": { "memory_bytes": 0, "disk_bytes": 0 }, "loaded": true,
        }))
        .unwrap()
    }

    #[test]
    fn what_is_used_is_not_left_over() {
        let sandboxes = [
            sandbox("ia", "run-a", "running"),
            sandbox("ib", "run-b", "ended"),
            sandbox("ic", "base", "paused"),
        ];
        let snapshots = [
            snapshot("base", "ready", &[]),
            snapshot("broken", "failed", &[]),
            snapshot("run-a", "ready", &[]),
            snapshot("run-b", "ready", &[]),
            snapshot("run-c", "live", &["x"]),
        ];
        let found = leftovers(&sandboxes, &snapshots, false);
        assert_eq!((found.sandboxes, found.snapshots), (vec!["ib".to_owned()], vec!["broken".to_owned()]));
        assert_eq!(leftovers(&sandboxes, &snapshots, true).snapshots, ["broken", "run-b"]);
    }
}
