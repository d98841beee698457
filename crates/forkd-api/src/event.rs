//! What happens, as a stream of lines.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::sandbox::{Ended, SandboxState};
use crate::snapshot::SnapshotStatus;

/// Something has happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub at_unix_ms: u64,
    /// A place in the stream: `after` with it continues behind this event.
    #[serde(default)]
    pub cursor: String,
    #[serde(flatten)]
    pub what: What,
}

/// Which events are wanted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventQuery {
    /// Those behind this cursor, and then those that happen. Without one, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only those of these sandboxes: ids with commas between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Only those of these snapshots: tags with commas between them. With `sandbox`, those of either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Only these kinds, as an event has them in `event`, with commas between them. `missed` always comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

impl What {
    /// Its name, as `event` has it.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Sandbox { .. } => "sandbox",
            What::SandboxRemoved { .. } => "sandbox_removed",
            What::Panicked { .. } => "panicked",
            What::OutOfDisk { .. } => "out_of_disk",
            What::Busy { .. } => "busy",
            What::RolledBack { .. } => "rolled_back",
            What::Dropped { .. } => "dropped",
            What::Snapshot { .. } => "snapshot",
            What::SnapshotRemoved { .. } => "snapshot_removed",
            What::Missed { .. } => "missed",
        }
    }

    /// All kinds.
    pub const KINDS: [&'static str; 10] = [
        "sandbox",
        "sandbox_removed",
        "panicked",
        "out_of_disk",
        "busy",
        "rolled_back",
        "dropped",
        "snapshot",
        "snapshot_removed",
        "missed",
    ];

    /// The sandbox that it is about.
    pub fn sandbox(&self) -> Option<&str> {
        match self {
            What::Sandbox { id, .. }
            | What::SandboxRemoved { id }
            | What::Panicked { id }
            | What::OutOfDisk { id, .. }
            | What::Busy { id, .. }
            | What::RolledBack { id, .. }
            | What::Dropped { id, .. } => Some(id),
            What::Snapshot { .. } | What::SnapshotRemoved { .. } | What::Missed { .. } => None,
        }
    }

    /// The snapshot that it is about.
    pub fn snapshot(&self) -> Option<&str> {
        match self {
            What::Snapshot { tag, .. } | What::SnapshotRemoved { tag } | What::RolledBack { tag, .. } => {
                Some(tag)
            }
            _ => None,
        }
    }
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
    /// Events were missed: they were read too slowly, or the cursor is of a time that is not kept any more.
    Missed {
        /// How many. Not known of a daemon that has ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
    },
}
