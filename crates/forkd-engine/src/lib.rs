//! Every decision about sandboxes: which processes there are, what they are told, and what is in their guests.
//!
//! No HTTP server and no KVM: the daemon asks this crate, and this crate asks VM processes (`forkd-vmm`) and agents.
//!
//! ```text
//!   Engine ──┬─ sandbox/     create, branch, rollback, end         each sandbox has a task that owns it
//!            ├─ snapshot/    make, derive, persist, load, evict,   each snapshot too
//!            │               compact, verify, history, names, remove
//!            ├─ disk/        layers, merges, quotas
//!            ├─ limits/      admission, owners, cgroups, usage
//!            ├─ network      leases of forkd-net
//!            ├─ recovery/    what an earlier daemon left
//!            ├─ process/     one VM process: its handle, its control socket, its user id
//!            └─ boot, bring_up, identity, exec, eval, contexts, files, transfer, dial: what is asked of a guest; console: what it prints
//! ```

pub mod agent;
mod background;
mod blocking;
pub mod boot;
pub mod bring_up;
mod commands;
pub mod console;
pub mod contexts;
pub mod dial;
mod disk;
mod ending;
mod engine;
mod error;
pub mod eval;
pub mod exec;
pub mod fault;
pub mod files;
pub mod guest;
pub mod host_environment;
pub mod identity;
mod ids;
mod kernel_panic;
pub mod library;
mod library_use;
mod limits;
mod network;
mod paths;
mod priority;
mod process;
pub mod project;
pub mod record;
mod recovery;
mod registry;
mod sandbox;
pub mod shutdown;
pub mod small;
mod snapshot;
#[cfg(test)]
mod testing;
pub mod transfer;
pub mod trust;

pub use commands::CommandError;
pub use engine::{Engine, EngineEvent, ProjectEvent, Settings};
pub use error::EngineError;
pub use limits::admission::{Limits, Refusal};
pub use limits::cgroup::{CgroupError, Cgroups, IoQuota};
pub use limits::owner::{Allowance, Claim, Owner, Who};
pub use limits::quota::{WantedLimits, default_quota};
pub use limits::room::Room;
pub use limits::usage::{Memory, StoredSize, Usage};
pub use network::{NetworkChange, NetworkOrder, Networking, NetworksFound};
pub use process::control::CallError;
pub use process::descriptors::VSOCK;
pub use process::users::UidRange;
pub use process::{ProcessError, VmProcess, page_table};
pub use recovery::recover::Recovered;
pub use recovery::sweep::Swept;
pub use sandbox::branch::Branched;
pub use sandbox::create::{Counted, Created, NewSandboxes, Source};
pub use sandbox::laps::{BranchStep, CreateStep, Lap, Laps, StepTimes, by_step};
pub use sandbox::lifetime::{Expiry, OnExpiry};
pub use sandbox::{End, EndReason, SandboxHandle, SandboxState, SandboxView};
pub use snapshot::build::{Built, PlannedBuild};
pub use snapshot::derive::NewDerived;
pub use snapshot::evict::Trimmed;
pub use snapshot::history::{HistoryEntry, SnapshotKind};
pub use snapshot::make::{NewSnapshot, Step, Steps};
pub use snapshot::prune::{Fate, Prunable, Prune};
pub use snapshot::remove::Removal;
pub use snapshot::travel::arrival::{Destination, Origin, received_prefetch};
pub use snapshot::travel::departure::Departure;
pub use snapshot::travel::user_memory::UserMemory;
pub use snapshot::travel::{TravelError, snapshot_digest};
pub use snapshot::verify::{Damage, Verified};
pub use snapshot::{SnapshotHandle, SnapshotStatus, SnapshotView};
