//! Sandboxes: VMs that run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::token::default_project;

use crate::error::ErrorBody;

/// The longest time to live of a sandbox: ten years.
pub const MAX_TTL_SECS: u64 = 10 * 365 * 24 * 3600;

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    pub id: String,
    /// The snapshot it was forked from.
    pub snapshot_tag: String,
    pub state: SandboxState,
    pub created_at_unix: u64,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "OnExpiry::is_end")]
    pub on_expiry: OnExpiry,
    /// Whether a request to it resumes it when it is paused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub wake_on_traffic: bool,
    pub vcpus: u8,
    pub memory_mib: u64,
    /// The disk space that it can write, in MiB.
    pub disk_mib: u64,
    /// What it may reach. Missing without a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Who created it: `token:NAME`, `unix:UID`, or `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The project it belongs to.
    #[serde(default = "default_project")]
    pub project: String,
    /// Its enforced limits.
    #[serde(default)]
    pub limits: Limits,
    /// The process id of its VM on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Its own branches, oldest first.
    pub branches: Vec<String>,
    pub metadata: BTreeMap<String, String>,
    /// Why it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// It does not have its own identity yet.
    Starting,
    Running,
    Paused,
    /// Its VM has ended; its record is kept for a while.
    Ended,
}

/// Why a VM has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ended {
    pub reason: EndReason,
    pub detail: String,
    pub at_unix: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The guest shut down.
    Shutdown,
    /// The guest reset itself.
    Reset,
    /// The guest's kernel panicked. The detail has its console message.
    KernelPanic,
    /// Its VM process failed.
    Failed,
    /// Its VM process was killed from outside.
    Killed,
    /// It ran out of memory.
    OutOfMemory,
    /// Its TTL expired.
    Expired,
}

/// Creates sandboxes in one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandboxes {
    /// What to fork: the snapshot with this name, or else the sandbox with this id. Give exactly one of `source`, `snapshot_tag`
    /// and `from_sandbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The snapshot to fork from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_tag: Option<String>,
    /// A sandbox to copy. It is branched and keeps running; the branch is removed when the copies exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_sandbox: Option<String>,
    /// The number of sandboxes.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    pub n: u32,
    /// Whether to keep the sandboxes that started when others fail.
    #[serde(default)]
    pub partial: bool,
    /// Seconds until they expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315360000)]
    pub ttl_secs: Option<u64>,
    /// What to do when they expire.
    #[serde(default, skip_serializing_if = "OnExpiry::is_end")]
    pub on_expiry: OnExpiry,
    /// Whether requests to a paused sandbox (code, commands, files, ports) resume it for another `ttl_secs`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub wake_on_traffic: bool,
    /// Arbitrary keys and values, which lists can be filtered by.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Added to the environment of every program started in them.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub limits: Limits,
    /// What they may reach [default: the same as the sandbox that they or their snapshot come from, otherwise the internet].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Whether to measure the resource usage of each sandbox during the creation, which makes it slower.
    #[serde(default, skip_serializing_if = "is_false")]
    pub counted: bool,
}

/// What to do when a sandbox expires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    #[default]
    End,
    /// It is paused, and does not expire again until it is resumed with a new TTL.
    Pause,
}

impl OnExpiry {
    pub fn is_end(&self) -> bool {
        *self == OnExpiry::End
    }
}

fn is_false(value: &bool) -> bool {
    !value
}

fn one() -> u32 {
    1
}

/// The limits of a sandbox [default: those of the snapshot].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The disk space that it can write, in MiB: at most that of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub disk_mib: Option<u64>,
    /// Bandwidth in MiB per second, for each direction.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub bandwidth_mib: Option<u64>,
    /// Host memory in MiB for what it does not share with its parent. A sandbox that exceeds it is ended [default: the guest's
    /// memory plus the overhead of the VM].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16, maximum = 16777216)]
    pub memory_mib: Option<u64>,
    /// CPU time in percent of one CPU [default: all vCPUs of the guest].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 102400)]
    pub cpu_percent: Option<u64>,
    /// CPU weight under contention (1-10000, default 100).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub cpu_weight: Option<u16>,
    /// Disk read bandwidth in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4096, maximum = 1099511627776_u64)]
    pub read_bytes_per_sec: Option<u64>,
    /// Disk write bandwidth in bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4096, maximum = 1099511627776_u64)]
    pub write_bytes_per_sec: Option<u64>,
    /// Disk I/O operations per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000000000)]
    pub io_per_sec: Option<u64>,
}

/// Where a sandbox may send packets. The host and other sandboxes are never reachable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    pub mode: EgressMode,
    /// Destinations allowed in the mode `list`, and in the mode `allow` in spite of `deny`: networks (`10.1.0.0/16`), addresses,
    /// names (`example.com`, `*.example.com`), each optionally with ports (`example.com:443`, `10.0.0.7:80,8000-8100`,
    /// `[2001:db8::/32]:443`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256)]
    pub allow: Vec<String>,
    /// Networks (`8.8.8.0/24`) and addresses that are blocked in the mode `allow`. `allow` takes precedence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256)]
    pub deny: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EgressMode {
    /// The internet: everything except private, link-local, metadata and other special networks, and what `deny` lists.
    #[default]
    Allow,
    /// Nothing.
    Deny,
    /// What `allow` lists.
    List,
}

impl From<EgressMode> for Egress {
    /// The mode without a list.
    fn from(mode: EgressMode) -> Egress {
        Egress { mode, allow: Vec::new(), deny: Vec::new() }
    }
}

/// The result of a request for sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedSandboxes {
    pub sandboxes: Vec<Sandbox>,
    /// The errors of those that failed, with `partial`.
    #[serde(default)]
    pub failures: Vec<ErrorBody>,
    pub timing: CreateTiming,
    /// The measured usage of each sandbox, if requested, in no particular order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<Counted>,
}

/// The resource usage of a sandbox at two points of its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counted {
    /// When its VM was running.
    pub running: SandboxStats,
    /// When its guest had its identity and was ready.
    pub ready: SandboxStats,
}

/// How long it took since the request was admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateTiming {
    /// Until every VM was running.
    pub restored_us: u64,
    /// Until every guest had its identity and was ready.
    pub ready_us: u64,
    /// The time of each step, without gaps. Steps that begin with `identity.` are parts of the step `identity`.
    #[serde(default)]
    pub steps: Vec<StepTiming>,
}

/// The time that sandboxes took for one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepTiming {
    pub step: String,
    /// The number of sandboxes that took it.
    pub count: u32,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

/// Which sandboxes a list has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListSandboxes {
    /// Only those in this state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<SandboxState>,
    /// Only those forked from this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_tag: Option<String>,
    /// Only those with this metadata, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// The maximum number of entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Continues a list: `next` of the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Sandboxes, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    pub sandboxes: Vec<Sandbox>,
    /// If there are more: pass this as `after` to get the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Changes when a sandbox expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTtl {
    /// Seconds from now; `null` for never.
    #[schema(minimum = 1, maximum = 315360000)]
    pub ttl_secs: Option<u64>,
}

/// Changes the bandwidth of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBandwidth {
    /// Bandwidth in MiB per second, for each direction; `null` for the daemon's default.
    #[schema(minimum = 1, maximum = 1048576)]
    pub bandwidth_mib: Option<u64>,
}

/// Makes a snapshot of a sandbox, which keeps running.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchSandbox {
    /// The snapshot's tag [default: a generated one].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether to respond only when the snapshot is on disk, instead of as soon as it can be forked.
    #[serde(default)]
    pub wait: bool,
}

/// Rolls a sandbox back to one of its own branches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Rollback {
    pub tag: String,
}

/// Which part of a console's log is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadConsole {
    /// The number of bytes from the end [default: 65536].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1048576)]
    pub bytes: Option<u64>,
    /// Also send the guest's later output, until the sandbox ends. Bytes are sent unchanged, also if they are not UTF-8.
    #[serde(default)]
    pub follow: bool,
}

/// Resource usage of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxStats {
    /// CPU time of the VM process so far.
    pub cpu_us: u64,
    /// Memory that only this sandbox maps.
    pub memory_private_bytes: u64,
    /// Memory that it shares with a snapshot's process, and through that with other sandboxes.
    pub memory_shared_bytes: u64,
    /// The snapshot that it shares this memory with: its latest branch in memory, or the snapshot it was forked from. Missing if
    /// neither is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_shared_with: Option<String>,
    /// Bytes written to its disk since its last branch.
    pub disk_bytes: u64,
    /// Page faults of the VM process, without those of its guest.
    #[serde(default)]
    pub process_faults: u64,
    /// KVM's counters of its guest since it was forked or last rolled back. Missing if the host's kernel does not have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmStats>,
    /// Its network traffic, if it has a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
}

/// Counters of KVM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KvmStats {
    /// Exits from the guest to KVM.
    pub exits: u64,
    /// Page faults on guest memory that was not mapped, or not for writing.
    pub page_faults: u64,
}

/// The network traffic of a sandbox, and what was dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkStats {
    pub sent_bytes: u64,
    pub sent_packets: u64,
    pub received_bytes: u64,
    pub received_packets: u64,
    /// Dropped: not allowed by its egress rules.
    pub refused_packets: u64,
    /// Over the bandwidth or the limit of connections.
    pub over_limit_packets: u64,
    /// Dropped: sent with an address that is not its own.
    pub spoofed_packets: u64,
}
