//! `sandboxes` and `snapshots`.

use forkd_api::sandbox::{self, Sandbox, SandboxState};
use forkd_api::snapshot::Snapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, table};
use crate::call::Call;
use crate::failure::Failure;
use crate::sandboxes::METADATA;

/// How many of them an answer has.
const MAX_ROWS: usize = 50;

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
    /// The newest first, at most 50.
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
    /// Its own branches, which it can go back to, the oldest first.
    branches: Vec<String>,
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
    fn from(sandbox: Sandbox) -> SandboxRow {
        SandboxRow {
            state: match sandbox.state {
                SandboxState::Starting => "starting",
                SandboxState::Running => "running",
                SandboxState::Paused => "paused",
                SandboxState::Ended => "ended",
            },
            sandbox: sandbox.id,
            snapshot: sandbox.snapshot_tag,
            branches: sandbox.branches,
            created_at_unix: sandbox.created_at_unix,
            expires_at_unix: sandbox.expires_at_unix,
            memory_mib: sandbox.memory_mib,
            vcpus: sandbox.vcpus,
            made_here: sandbox.metadata.contains_key(METADATA),
            ended: sandbox.ended.map(|ended| ended.detail),
        }
    }
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
    let total = found.len();
    found.reverse();
    found.truncate(MAX_ROWS);
    let rows: Vec<SandboxRow> = found.into_iter().map(Into::into).collect();
    let lines = rows.iter().map(|row| {
        let state = match &row.ended {
            Some(why) => format!("{}: {why}", row.state),
            None => row.state.to_owned(),
        };
        [row.sandbox.clone(), state, row.snapshot.clone(), row.branches.join(", ")]
    });
    let text = match total {
        0 => "There are no sandboxes. `run` makes one.".to_owned(),
        _ => table(["sandbox", "state", "snapshot", "branches"], lines) + &rest(total),
    };
    Ok(Answer::with_data(text, &SandboxTable { sandboxes: rows, total }))
}

fn rest(total: usize) -> String {
    match total > MAX_ROWS {
        true => format!("These are the newest {MAX_ROWS} of {total}.\n"),
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
    /// The newest first, at most 50.
    snapshots: Vec<SnapshotRow>,
    /// How many there are.
    total: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
struct SnapshotRow {
    snapshot: String,
    /// Its other names.
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
            names: snapshot.names,
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
    all.truncate(MAX_ROWS);
    let rows: Vec<SnapshotRow> = all.into_iter().map(Into::into).collect();
    let lines = rows.iter().map(|row| {
        let of = match (&row.branched_from, &row.image) {
            (Some(sandbox), _) => format!("branch of {sandbox}"),
            (None, Some(image)) => format!("image {image}"),
            (None, None) => String::new(),
        };
        [row.snapshot.clone(), row.status.clone(), of, format!("{} MiB", row.memory_mib)]
    });
    let text = match total {
        0 => "There are no snapshots. The user makes one with: forkd snapshot IMAGE --tag NAME".to_owned(),
        _ => table(["snapshot", "status", "of", "memory"], lines) + &rest(total),
    };
    Ok(Answer::with_data(text, &SnapshotTable { snapshots: rows, total }))
}
