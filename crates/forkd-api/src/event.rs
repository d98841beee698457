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

/// Why something was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// Its egress does not allow it.
    Refused,
    /// With addresses that are not the sandbox's.
    Spoofed,
    /// Beyond its bandwidth, or with more connections than a sandbox may have.
    OverLimit,
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
    /// A sandbox was forked or rolled back while code ran in these interpreter contexts. The code continues, with new random numbers; fork hooks and environment follow when it ends.
    Busy { id: String, contexts: Vec<String> },
    /// A sandbox has gone back to one of its branches.
    RolledBack { id: String, tag: String },
    /// Something that a sandbox has sent, or a name that it has asked for, was dropped. Not more than a few a second are told.
    Dropped {
        id: String,
        reason: DropReason,
        /// `tcp`, `udp`, `icmp`, `icmpv6`, or a number of IP.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        protocol: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        destination: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// The name that was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A snapshot has another status.
    Snapshot { tag: String, status: SnapshotStatus },
    /// A snapshot is no longer there.
    SnapshotRemoved { tag: String },
    /// So many events were missed, because they were read too slowly.
    Missed { count: u64 },
}
