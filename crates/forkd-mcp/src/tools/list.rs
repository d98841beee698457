//! `sandboxes` and `snapshots`.

use forkd_api::sandbox::{self, Sandbox, SandboxState};
use forkd_api::snapshot::Snapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, fitting_table, shortened};
use crate::call::Call;
use crate::failure::Failure;
use crate::sandboxes::METADATA;

/// How many of them an answer has.
const MAX_ROWS: usize = 50;
/// How many names of one of them an answer has.
const MAX_NAMES: usize = 100;
/// How much of an answer has why a sandbox ended.
const MAX_WHY: usize = 1 << 10;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSandboxes {
    /// Only this sandbox.
    sandbox: Option<String>,
    /// Also those that have ended, as long as they are remembered.
    #[serde(default)]
    all: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxTable {
    /// The newest first, at most 50, and as many as fit into an answer.
    sandboxes: Vec<SandboxRow>,
    /// How many there are.
    total: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SandboxRow {
    sandbox: String,
    /// starting, running, paused or ended.
    state: &'static str,
    /// What it was made of.
    snapshot: String,
    /// Its own branches, which it can go back to, the oldest first; of many, the newest 100.
    branches: Vec<String>,
    /// How many older branches are left out.
    #[serde(skip_serializing_if = "is_zero")]
    branches_left_out: usize,
    created_at_unix: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at_unix: Option<u64>,
    memory_mib: u64,
    vcpus: u8,
    /// Whether it was made through MCP: its time to live begins anew with every use.
    made_here: bool,
    /// Why it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<String>,
}

impl From<Sandbox> for SandboxRow {
    fn from(mut sandbox: Sandbox) -> SandboxRow {
        let branches_left_out = sandbox.branches.len().saturating_sub(MAX_NAMES);
        SandboxRow {
            state: match sandbox.state {
                SandboxState::Starting => "starting",
                SandboxState::Running => "running",
                SandboxState::Paused => "paused",
                SandboxState::Ended => "ended",
            },
            sandbox: sandbox.id,
            snapshot: sandbox.snapshot_tag,
            branches: sandbox.branches.split_off(branches_left_out),
            branches_left_out,
            created_at_unix: sandbox.created_at_unix,
            expires_at_unix: sandbox.expires_at_unix,
            memory_mib: sandbox.memory_mib,
            vcpus: sandbox.vcpus,
            made_here: sandbox.metadata.contains_key(METADATA),
            ended: sandbox.ended.map(|ended| shortened(&ended.detail, MAX_WHY, 0)),
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

pub(super) async fn sandboxes(call: &Call<'_>, wanted: ListSandboxes) -> Result<Answer, Failure> {
    let mut found = match &wanted.sandbox {
        Some(id) => {
            let sandbox = call.client.sandbox(id).await;
            vec![sandbox.map_err(|error| call.failed(format!("Cannot look at sandbox {id}"), &error))?]
        }
        None => {
            let all = call.client.sandboxes(&sandbox::ListSandboxes::default()).await;
            let mut all = all.map_err(|error| call.failed("Cannot list sandboxes", &error))?;
            all.retain(|sandbox| wanted.all || sandbox.state != SandboxState::Ended);
            all
        }
    };
    found.reverse();
    Ok(sandbox_table(found))
}

/// Of sandboxes, the newest first.
fn sandbox_table(found: Vec<Sandbox>) -> Answer {
    let total = found.len();
    let mut rows: Vec<SandboxRow> = found.into_iter().take(MAX_ROWS).map(Into::into).collect();
    let table = fitting_table(["sandbox", "state", "snapshot", "branches"], &mut rows, |row| {
        let state = match &row.ended {
            Some(why) => format!("{}: {why}", row.state),
            None => row.state.to_owned(),
        };
        let older = match row.branches_left_out {
            0 => String::new(),
            count => format!("{count} older, "),
        };
        [row.sandbox.clone(), state, row.snapshot.clone(), older + &row.branches.join(", ")]
    });
    let text = match total {
        0 => "There are no sandboxes. `run` makes one.".to_owned(),
        _ => table + &rest(rows.len(), total),
    };
    Answer::with_data(text, &SandboxTable { sandboxes: rows, total })
}

fn rest(shown: usize, total: usize) -> String {
    match shown < total {
        true => format!("These are the newest {shown} of {total}; {} are left out.\n", total - shown),
        false => String::new(),
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSnapshots {
    /// Only branches of this sandbox.
    sandbox: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SnapshotTable {
    /// The newest first, at most 50, and as many as fit into an answer.
    snapshots: Vec<SnapshotRow>,
    /// How many there are.
    total: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SnapshotRow {
    snapshot: String,
    /// Its other names, at most 100.
    names: Vec<String>,
    /// live, persisting, ready or failed. All but the last can be forked.
    status: String,
    /// The sandbox that it is a branch of.
    #[serde(skip_serializing_if = "Option::is_none")]
    branched_from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    memory_mib: u64,
    vcpus: u8,
    created_at_unix: u64,
    /// Whether its sandboxes have a network.
    network: bool,
}

impl From<Snapshot> for SnapshotRow {
    fn from(snapshot: Snapshot) -> SnapshotRow {
        let status = serde_json::to_value(snapshot.status).ok();
        SnapshotRow {
            status: status.as_ref().and_then(|status| status.as_str()).unwrap_or_default().to_owned(),
            snapshot: snapshot.tag,
            names: snapshot.names.into_iter().take(MAX_NAMES).collect(),
            branched_from: snapshot.branched_from,
            image: snapshot.image,
            memory_mib: snapshot.memory_mib,
            vcpus: snapshot.vcpus,
            created_at_unix: snapshot.created_at_unix,
            network: snapshot.network,
        }
    }
}

pub(super) async fn snapshots(call: &Call<'_>, wanted: ListSnapshots) -> Result<Answer, Failure> {
    let all = call.client.snapshots().await;
    let mut all = all.map_err(|error| call.failed("Cannot list snapshots", &error))?;
    if wanted.sandbox.is_some() {
        all.retain(|snapshot| snapshot.branched_from == wanted.sandbox);
    }
    all.sort_by_key(|snapshot| std::cmp::Reverse(snapshot.created_at_unix));
    let total = all.len();
    let mut rows: Vec<SnapshotRow> = all.into_iter().take(MAX_ROWS).map(Into::into).collect();
    let table = fitting_table(["snapshot", "status", "of", "memory"], &mut rows, |row| {
        let of = match (&row.branched_from, &row.image) {
            (Some(sandbox), _) => format!("branch of {sandbox}"),
            (None, Some(image)) => format!("image {image}"),
            (None, None) => String::new(),
        };
        [row.snapshot.clone(), row.status.clone(), of, format!("{} MiB", row.memory_mib)]
    });
    let text = match total {
        0 => "There are no snapshots. The user makes one with: forkd snapshot IMAGE --tag NAME".to_owned(),
        _ => table + &rest(rows.len(), total),
    };
    Ok(Answer::with_data(text, &SnapshotTable { snapshots: rows, total }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::answer::MAX_SHOWN;

    fn sandbox(number: usize, branches: usize, why: Option<&str>) -> Sandbox {
        let branches: Vec<_> = (0..branches).map(|branch| format!("{}-{branch}", "b".repeat(40))).collect();
        let mut made = json!({
            "id": format!("sb-{number}"), "snapshot_tag": "base", "state": "running", "created_at_unix": 1, "vcpus": 1,
            "memory_mib": 128, "disk_mib": 128, "branches": branches, "metadata": {},
        });
        if let Some(why) = why {
            made["state"] = json!("ended");
            made["ended"] = json!({ "reason": "failed", "detail": why, "at_unix": 2 });
        }
        serde_json::from_value(made).unwrap()
    }

    /// How many rows there are, and the last line.
    fn told(found: Vec<Sandbox>) -> (usize, String) {
        let answer = sandbox_table(found);
        let text = &answer.content[0].as_text().unwrap().text;
        let data = answer.structured.as_ref().unwrap();
        assert!(text.len() <= MAX_SHOWN && data.to_string().len() <= MAX_SHOWN, "{}", text.len());
        (data["sandboxes"].as_array().unwrap().len(), text.lines().last().unwrap_or_default().to_owned())
    }

    #[test]
    fn long_lists_are_cut_and_say_how_many_are_left_out() {
        assert_eq!(told(vec![sandbox(1, 0, None)]), (1, "| sb-1 | running | base |  |".to_owned()));
        let many = told((0..60).map(|number| sandbox(number, 0, None)).collect());
        assert_eq!(many, (50, "These are the newest 50 of 60; 10 are left out.".to_owned()));
        let (shown, last) = told((0..40).map(|number| sandbox(number, 20, None)).collect());
        assert!(shown > 5 && shown < 40);
        assert_eq!(last, format!("These are the newest {shown} of 40; {} are left out.", 40 - shown));
    }

    #[test]
    fn one_sandbox_is_always_shown() {
        let (shown, last) = told(vec![sandbox(1, 1000, Some(&"why\n".repeat(10_000)))]);
        assert_eq!(shown, 1);
        assert!(last.starts_with("| sb-1 | ended: why why") && last.contains("bytes left out"), "{last}");
        assert!(last.contains("| 900 older, b") && last.ends_with("b-999 |"), "{last}");
    }
}
