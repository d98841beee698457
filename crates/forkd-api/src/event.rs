//! What happens, as a stream of lines.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::sandbox::{Ended, SandboxState};
use crate::snapshot::SnapshotStatus;

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    pub at_unix_ms: u64,
    /// A position in the stream: pass it as `after` to continue after this event.
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
    /// Events after this cursor, then new ones [default: only new ones].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Only events of these sandboxes: ids, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Only events of these snapshots: tags, separated by commas. With `sandbox`, events of either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Only these kinds, as in `event` of an event, separated by commas. `missed` is always sent.
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

/// Why a packet or name was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DropReason {
    /// Not allowed by the sandbox's egress rules.
    Refused,
    /// Sent with an address that is not the sandbox's.
    Spoofed,
    /// Over the bandwidth or the limit of connections.
    OverLimit,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A sandbox has changed its state.
    Sandbox {
        id: String,
        state: SandboxState,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ended: Option<Ended>,
    },
    /// A sandbox was removed.
    SandboxRemoved { id: String },
    /// A guest's kernel has panicked.
    Panicked { id: String },
    /// A guest's disk is full.
    OutOfDisk { id: String, limit_bytes: u64 },
    /// A sandbox was forked or rolled back while code ran in these interpreter contexts. The code continues, with new random numbers; fork hooks and environment follow when it ends.
    Busy { id: String, contexts: Vec<String> },
    /// A sandbox was rolled back to one of its branches.
    RolledBack { id: String, tag: String },
    /// A packet or a name query of a sandbox was dropped. At most a few of these are reported per second.
    Dropped {
        id: String,
        reason: DropReason,
        /// `tcp`, `udp`, `icmp`, `icmpv6`, or an IP protocol number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        protocol: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        destination: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
        /// The queried name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
    /// A snapshot has changed its status.
    Snapshot { tag: String, status: SnapshotStatus },
    /// A snapshot was removed.
    SnapshotRemoved { tag: String },
    /// Events were missed: the client read too slowly, or the cursor is too old.
    Missed {
        /// The number of missed events, unless the daemon has been restarted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        count: Option<u64>,
    },
}
