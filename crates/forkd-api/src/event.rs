//! What happens, as a stream of lines.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandbox::{Ended, SandboxState};
use crate::snapshot::SnapshotStatus;

/// Something has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub at_unix_ms: u64,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A sandbox is in another state.
    Sandbox {
        id: String,
        state: SandboxState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Ended>,
    },
    /// A sandbox is no longer known.
    SandboxRemoved { id: String },
    /// A guest's kernel has panicked.
    Panicked { id: String },
    /// A guest has filled its disk.
    OutOfDisk { id: String, limit_bytes: u64 },
    /// A sandbox has gone back to one of its branches.
    RolledBack { id: String, tag: String },
    /// A snapshot has another status.
    Snapshot { tag: String, status: SnapshotStatus },
    /// A snapshot is no longer there.
    SnapshotRemoved { tag: String },
    /// So many events were missed, because they were read too slowly.
    Missed { count: u64 },
}
