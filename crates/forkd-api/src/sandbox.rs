//! Sandboxes: VMs that run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::token::default_project;

use crate::error::ErrorBody;

/// The longest time until a sandbox is ended by itself: ten years.
pub const MAX_TTL_SECS: u64 = 10 * 365 * 24 * 3600;

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sandbox {
    pub id: String,
    /// The snapshot that it was forked from.
    pub snapshot_tag: String,
    pub state: SandboxState,
    pub created_at_unix: u64,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_unix: Option<u64>,
    #[serde(default, skip_serializing_if = "OnExpiry::is_end")]
    pub on_expiry: OnExpiry,
    /// Whether a request to it wakes it when it is paused.
    #[serde(default, skip_serializing_if = "is_false")]
    pub wake_on_traffic: bool,
    pub vcpus: u8,
    pub memory_mib: u64,
    /// What it may write to its disk.
    pub disk_mib: u64,
    /// What it may reach. Without a network, nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Who asked for it: `token:NAME`, `unix:UID`, or `local`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The project that it belongs to.
    #[serde(default = "default_project")]
    pub project: String,
    /// What it may use of the host, as it is kept.
    #[serde(default)]
    pub limits: Limits,
    /// Its VM process on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Its own branches, the oldest first.
    pub branches: Vec<String>,
    pub metadata: BTreeMap<String, String>,
    /// Why it has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// It has not taken its identity yet.
    Starting,
    Running,
    Paused,
    /// Its VM is gone; what is known of it is kept for a while.
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
    /// The guest switched itself off.
    Shutdown,
    /// The guest reset itself.
    Reset,
    /// The guest's kernel panicked. The detail is what its console says of it.
    KernelPanic,
    /// Its VM process failed.
    Failed,
    /// Its VM process was killed from outside.
    Killed,
    /// It had too little memory.
    OutOfMemory,
    /// Its time was over.
    Expired,
}

/// Asks for sandboxes, as one operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandboxes {
    /// What to fork: a snapshot of this name, or else a sandbox with this id. Either this, `snapshot_tag` or `from_sandbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The snapshot to fork from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_tag: Option<String>,
    /// A sandbox to copy: it is branched, goes on, and the branch is removed when the copies are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_sandbox: Option<String>,
    /// How many.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000, default = 1)]
    pub n: u32,
    /// Whether those that came up are kept when others did not.
    #[serde(default)]
    pub partial: bool,
    /// Seconds until they expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 315360000)]
    pub ttl_secs: Option<u64>,
    /// What happens to them when they expire.
    #[serde(default, skip_serializing_if = "OnExpiry::is_end")]
    pub on_expiry: OnExpiry,
    /// Whether a request to one that is paused wakes it, for another `ttl_secs`: code, commands, files and ports.
    #[serde(default, skip_serializing_if = "is_false")]
    pub wake_on_traffic: bool,
    /// The caller's own words, which lists can be filtered by.
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    /// Added to the environment of everything that is started in them.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub limits: Limits,
    /// What they may reach. Without it, what the sandbox may that `from_sandbox` or the snapshot comes from, else the internet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
    /// Whether to look on the way at what each of them uses: for measurements, since it takes time.
    #[serde(default, skip_serializing_if = "is_false")]
    pub counted: bool,
}

/// What happens to a sandbox when its time is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    #[default]
    End,
    /// It is paused, and does not expire until it is resumed with a new time.
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

/// What a sandbox may use. What is not said is as the snapshot has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// What it may write to its disk: at most what the snapshot's may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub disk_mib: Option<u64>,
    /// MiB a second that it may send, and may receive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub bandwidth_mib: Option<u64>,
    /// Of the host's memory, for what it does not share with its parent. One that needs more is ended. Without it, as much as
    /// its guest has, and what that costs the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 16, maximum = 16777216)]
    pub memory_mib: Option<u64>,
    /// CPU time, in hundredths of one CPU. Without it, all of its CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 102400)]
    pub cpu_percent: Option<u64>,
    /// Its share where CPUs are short, against 100 of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 10000)]
    pub cpu_weight: Option<u16>,
    /// What it may read from the device of its disk, each second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4096, maximum = 1099511627776_u64)]
    pub read_bytes_per_sec: Option<u64>,
    /// What it may write there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 4096, maximum = 1099511627776_u64)]
    pub write_bytes_per_sec: Option<u64>,
    /// How often it may do either.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000000000)]
    pub io_per_sec: Option<u64>,
}

/// Where the packets of a sandbox may go. The host and other sandboxes are never among it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Egress {
    pub mode: EgressMode,
    /// What is reached in the mode `list`, and in the mode `allow` although `deny` has it: networks (`10.1.0.0/16`), addresses, names (`example.com`, `*.example.com`), each
    /// with ports if only those are meant (`example.com:443`, `10.0.0.7:80,8000-8100`, `[2001:db8::/32]:443`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256)]
    pub allow: Vec<String>,
    /// Networks (`8.8.8.0/24`) and addresses that are not reached in the mode `allow`. What `allow` has wins over them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256)]
    pub deny: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EgressMode {
    /// To the internet: everywhere but private, link-local, metadata and other special networks, and what `deny` lists.
    #[default]
    Allow,
    /// Nowhere.
    Deny,
    /// To what `allow` lists.
    List,
}

impl From<EgressMode> for Egress {
    /// The mode without a list.
    fn from(mode: EgressMode) -> Egress {
        Egress { mode, allow: Vec::new(), deny: Vec::new() }
    }
}

/// What became of a request for sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedSandboxes {
    pub sandboxes: Vec<Sandbox>,
    /// Those that did not come up, if the others were to be kept.
    #[serde(default)]
    pub failures: Vec<ErrorBody>,
    pub timing: CreateTiming,
    /// What each of them used on the way, if that was asked for. In no order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<Counted>,
}

/// What a sandbox used at two moments of its creation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counted {
    /// When its VM ran.
    pub running: SandboxStats,
    /// When its guest had its identity and was ready.
    pub ready: SandboxStats,
}

/// How long it took, from the moment the request was admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateTiming {
    /// Until every VM ran.
    pub restored_us: u64,
    /// Until every guest had its identity and was ready.
    pub ready_us: u64,
    /// Where the time of each of them went, without a gap. Steps that begin with `identity.` are parts of the step `identity`.
    #[serde(default)]
    pub steps: Vec<StepTiming>,
}

/// How long sandboxes took for one step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StepTiming {
    pub step: String,
    /// How many took it.
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
    /// Only those that were forked from this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_tag: Option<String>,
    /// Only those with this metadata, as `key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<String>,
    /// How many at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Where the list goes on: `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Sandboxes, the oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxList {
    pub sandboxes: Vec<Sandbox>,
    /// There are more: ask again with this as `after`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Changes when a sandbox is ended by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetTtl {
    /// Seconds from now; `null` for never.
    #[schema(minimum = 1, maximum = 315360000)]
    pub ttl_secs: Option<u64>,
}

/// Changes how much a sandbox may send and receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetBandwidth {
    /// MiB a second that it may send, and may receive; `null` for what the daemon gives to those who ask for nothing.
    #[schema(minimum = 1, maximum = 1048576)]
    pub bandwidth_mib: Option<u64>,
}

/// Makes a snapshot of a sandbox, which goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BranchSandbox {
    /// The snapshot's name. Without one, it gets one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether the answer comes when the snapshot is on disk, or as soon as it can be forked from.
    #[serde(default)]
    pub wait: bool,
}

/// Takes a sandbox back to one of its own branches.
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
    /// How many bytes, from its end; 65536 without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1048576)]
    pub bytes: Option<u64>,
    /// Also send what the guest prints from now on, until the sandbox ends. Bytes come as the guest has printed them, UTF-8 or not.
    #[serde(default)]
    pub follow: bool,
}

/// What a sandbox uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxStats {
    /// CPU time of the VM process so far.
    pub cpu_us: u64,
    /// Memory that only this sandbox maps.
    pub memory_private_bytes: u64,
    /// Memory that it shares with other processes: with a snapshot's, and through that with other sandboxes.
    pub memory_shared_bytes: u64,
    /// The snapshot that it shares this memory with: its latest branch in memory, or the snapshot that it was forked from. None
    /// if neither is in memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_shared_with: Option<String>,
    /// What it has written to its disk since its last branch.
    pub disk_bytes: u64,
    /// Page faults of the VM process, its guest's aside.
    #[serde(default)]
    pub process_faults: u64,
    /// What KVM has counted of its guest since it was forked or last rolled back. None where the kernel does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<KvmStats>,
    /// What went through its network, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkStats>,
}

/// What KVM has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KvmStats {
    /// From the guest to KVM.
    pub exits: u64,
    /// On guest memory that was not mapped, or not for writing.
    pub page_faults: u64,
}

/// What a sandbox has sent and received, and what was dropped of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkStats {
    pub sent_bytes: u64,
    pub sent_packets: u64,
    pub received_bytes: u64,
    pub received_packets: u64,
    /// Not allowed by its egress.
    pub refused_packets: u64,
    /// Beyond its bandwidth, or with more connections than a sandbox may have.
    pub over_limit_packets: u64,
    /// With addresses that are not its own.
    pub spoofed_packets: u64,
}
