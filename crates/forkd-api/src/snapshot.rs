//! Snapshots: what sandboxes are forked from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::token::default_project;

use crate::code::Language;
use crate::library::Credentials;

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub tag: String,
    /// Its other names. Each can be used instead of the tag.
    #[serde(default)]
    pub names: Vec<String>,
    /// The project it belongs to.
    #[serde(default = "default_project")]
    pub project: String,
    /// Whether every project can fork it.
    #[serde(default)]
    pub public: bool,
    pub status: SnapshotStatus,
    pub created_at_unix: u64,
    /// The snapshot that this one is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The snapshots that are based on this one.
    pub children: Vec<String>,
    /// The sandbox that it was branched from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branched_from: Option<String>,
    /// The image that it was booted from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub vcpus: u8,
    pub memory_mib: u64,
    pub disk_mib: u64,
    /// The CPU model of its sandboxes.
    #[serde(default)]
    pub cpu: Cpu,
    /// Whether its sandboxes have a network device.
    #[serde(default)]
    pub network: bool,
    /// For a built snapshot: the digest of its inputs. A build with the same key reuses this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_key: Option<String>,
    /// How long the sandbox was paused for it, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_us: Option<u64>,
    /// Its size on disk so far.
    pub size: SnapshotSize,
    /// Whether it is held in memory, ready to fork.
    pub loaded: bool,
    /// The memory of the process that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<SnapshotMemory>,
    /// The reason, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The CPU model of a guest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum Cpu {
    /// All features of the host's CPU that guests may use: no nested virtualisation, performance counters or enclaves.
    #[default]
    #[serde(rename = "host")]
    Host,
    /// Exactly the features of the level x86-64-v2.
    #[serde(rename = "x86-64-v2")]
    V2,
    /// Exactly the features of the level x86-64-v3.
    #[serde(rename = "x86-64-v3")]
    V3,
}

impl Cpu {
    fn is_host(&self) -> bool {
        *self == Cpu::Host
    }

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Cpu::Host => "host",
            Cpu::V2 => "x86-64-v2",
            Cpu::V3 => "x86-64-v3",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotStatus {
    /// It can be forked, but exists only in memory.
    Live,
    /// It can be forked, and is being written to disk.
    Persisting,
    /// It is on disk.
    Ready,
    /// It cannot be used.
    Failed,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSize {
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

/// The memory of a snapshot's process. For a branch, this is the memory of the sandbox at that time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotMemory {
    /// Memory that only this process maps. It is freed when the snapshot is removed.
    pub private_bytes: u64,
    /// Memory that it shares with sandboxes and other snapshots.
    pub shared_bytes: u64,
}

/// The first part of the tags of snapshots that are named after what they are made of.
pub const UNNAMED_PREFIX: &str = "run-";
/// The first part of the tags of snapshots that came from elsewhere because others are based on them.
pub const BASE_PREFIX: &str = "base-";

/// Boots an image or forks a snapshot, runs commands and code in the guest, and takes a snapshot of it. Needs exactly one of
/// `image` and `snapshot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// The tag. Without one, it is derived from the inputs, and the snapshot is made only once: equal requests get the same
    /// snapshot, also while it is still being made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The name or id of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A snapshot to base the new one on, which stores only the difference. Needs a tag. The guest's configuration is inherited: of
    /// the other fields, only `env`, `run`, `warm_up` and `wait` can be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// The id or version of a kernel [default: the default kernel].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 32)]
    pub vcpus: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 64, maximum = 1048576)]
    pub memory_mib: Option<u64>,
    /// The disk space that its sandboxes can write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub disk_mib: Option<u64>,
    /// The CPU model of the guest. A snapshot with a level runs on every host that has the level.
    #[serde(default, skip_serializing_if = "Cpu::is_host")]
    pub cpu: Cpu,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// A program to start when the guest boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyProbe>,
    /// Commands to run in order, as root with `sh -c`, before `warm_up`. The request fails if one of them fails.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<String>,
    /// Code to run in order before the snapshot is taken.
    #[serde(default)]
    pub warm_up: Vec<WarmUp>,
    /// Whether to pass the CA certificates and proxy settings of the daemon's host to the guest, for hosts behind an intercepting
    /// proxy: in its environment, in /run/forkd, and in its own file of trusted certificates, if it has one. Needs the scope admin.
    #[serde(default)]
    pub host_certs: bool,
    /// Whether to set the guest up for E2B clients: commands, files and code run as the user `user` unless a call names another, in
    /// /home/user, with passwordless sudo, on any image.
    #[serde(default)]
    pub e2b: bool,
    /// Whether the guest has a network device. Without one, its sandboxes can only be reached through the daemon.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub network: bool,
    /// Whether to respond only when the snapshot is on disk, instead of as soon as it can be forked.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub wait: bool,
}

fn yes() -> bool {
    true
}

/// Builds a snapshot: makes it unless one with the same contents exists, and gives it a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildSnapshot {
    /// The name: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit. A snapshot that was built under this name
    /// before loses the name, but is not removed.
    pub name: String,
    /// The inputs, without a tag: the tag is the name with digits of the key.
    pub contents: CreateSnapshot,
    /// Whether to make it again even if a snapshot with the same contents exists.
    #[serde(default)]
    pub no_cache: bool,
    /// Whether to make nothing and only report what would be made.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a build did, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildOutcome {
    /// The name already referred to a snapshot with the same contents.
    Unchanged,
    /// A snapshot with the same contents existed, and got the name.
    Reused,
    /// The snapshot was made.
    Made,
}

impl BuildOutcome {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            BuildOutcome::Unchanged => "unchanged",
            BuildOutcome::Reused => "reused",
            BuildOutcome::Made => "made",
        }
    }
}

/// The result of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuiltSnapshot {
    pub name: String,
    pub outcome: BuildOutcome,
    /// The digest of its inputs. Missing if the snapshot that it is based on would have to be made first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Missing if it does not exist yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// The tag of the snapshot that had the name before, if it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
}

/// How to detect that the guest is ready. Needs exactly one of `port` and `command`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadyProbe {
    /// Ready when a process listens on this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Ready when this command exits with 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3600)]
    pub timeout_secs: Option<u64>,
}

/// Code for one of the guest's interpreters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct WarmUp {
    pub language: Language,
    pub code: String,
}

/// A line of the streamed response (`Accept: application/x-ndjson`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The current step.
    Step(String),
    /// A line of output of a step.
    Output(String),
    /// The last line: the result.
    Snapshot(Box<Snapshot>),
    /// The last line of a build: the result.
    Built(Box<BuiltSnapshot>),
    /// The last line: the error.
    Error(crate::error::ErrorBody),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    pub snapshots: Vec<Snapshot>,
}

/// A snapshot, the snapshots it is based on, and those based on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotHistory {
    /// The snapshot that was asked for.
    pub tag: String,
    /// Its chain from the base up, the snapshot itself, then its dependents, each directly after its parent or a sibling's
    /// dependents. Snapshots that the caller may not see are omitted.
    pub snapshots: Vec<SnapshotHistoryEntry>,
}

/// A snapshot in a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotHistoryEntry {
    pub tag: String,
    /// Its other names.
    #[serde(default)]
    pub names: Vec<String>,
    pub status: SnapshotStatus,
    pub kind: SnapshotKind,
    /// The number of snapshots that it is based on, directly or indirectly.
    pub depth: u32,
    pub created_at_unix: u64,
    /// The snapshot that it is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The snapshots that are directly based on it.
    pub dependents: Vec<String>,
    /// Bytes on disk that only it and its dependents use: its memory, its state, and the disk layers that came with it.
    pub own_bytes: u64,
    /// Bytes on disk that it shares with others: the memory of the snapshots it is based on, their disk layers, and the image.
    pub shared_bytes: u64,
}

/// Whether a snapshot stores all of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// All of its memory.
    Full,
    /// Only the memory that differs from its parent's.
    Diff,
}

/// The result of reading every file of a snapshot and of the snapshots it is based on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotVerification {
    pub tag: String,
    /// Whether all files are intact.
    pub intact: bool,
    /// The number of snapshots read: itself and those it is based on.
    pub snapshots: u32,
    /// The number of disk layers read, including the image.
    pub disk_layers: u32,
    /// The number of bytes read, including holes of disk layers.
    pub bytes: u64,
    /// The first damaged file, if any. Files after it were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<SnapshotDamage>,
}

/// A damaged file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDamage {
    /// The path of the file, relative to the daemon's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// What is wrong with it.
    pub problem: String,
}

/// How a snapshot is removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveSnapshot {
    /// Whether to also remove the snapshots based on it.
    #[serde(default)]
    pub cascade: bool,
    /// Whether to also remove its other names. Without this, removing a snapshot that has any is refused.
    #[serde(default)]
    pub all_names: bool,
}

/// Which unused snapshots to remove. Never removed: snapshots that have sandboxes or that sandboxes can be rolled back to, public
/// ones, and those that a remaining snapshot is based on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneSnapshots {
    /// Only those that were not forked for this many seconds.
    #[serde(default)]
    pub unused_seconds: u64,
    /// Stop when the remaining snapshots take at most this much disk space, in MiB. The least recently used are removed first.
    #[serde(default)]
    pub keep_mib: u64,
    /// Whether to also remove snapshots with a chosen name, not only those with a generated one. Needs `unused_seconds` or
    /// `keep_mib`.
    #[serde(default)]
    pub named: bool,
    /// Only those of this project [default: all that the caller may remove].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Only report what would be removed.
    #[serde(default)]
    pub dry_run: bool,
}

/// The snapshots that were or would be removed, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedSnapshots {
    pub snapshots: Vec<PrunedSnapshot>,
    /// Freed bytes on disk.
    pub freed_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedSnapshot {
    pub tag: String,
    /// When it was last forked, or made.
    pub used_at_unix: u64,
    pub freed_bytes: u64,
}

/// How a snapshot gets another name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NameSnapshot {
    /// Whether to move the name if another snapshot has it.
    #[serde(default)]
    pub force: bool,
}

/// The removed snapshots, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedSnapshots {
    pub removed: Vec<String>,
    /// The removed name, if the request named not the tag of a snapshot but one of its other names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// Pushes a snapshot to a registry, with all snapshots that it is based on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushSnapshot {
    /// The destination: `registry.example/team/app:tag`.
    pub reference: String,
    /// Credentials for the registry [default: those of the daemon's Docker config file].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// Repositories of the same registry, without the registry's name, that may already have some of the blobs. The daemon adds
    /// those that the snapshot, or one it is based on, was pushed to or pulled from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_from: Vec<String>,
    /// Adds the snapshot to the tag as the variant with this name (1-63 of a-z, 0-9 and `._-`), replacing an earlier one with that
    /// name. A pull of the tag gets the first variant that fits the host. Without it, the tag then names this snapshot alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// With `variant`: a public key in PEM (ECDSA P-256). If what the reference names already is not signed with it, nothing is pushed.
    /// For those who will sign the reference with this key, and with it the variants of others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variants_key: Option<String>,
    /// Confirms the push of a snapshot that contains the memory of a sandbox's users: a snapshot of a sandbox, or one based on it.
    #[serde(default)]
    pub yes: bool,
}

/// Pulls a snapshot from a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullSnapshot {
    /// The source: `registry.example/team/app:tag`, or with `@sha256:…`.
    pub reference: String,
    /// The tag on this daemon [default: the tag of the sender].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Credentials for the registry [default: those of the daemon's Docker config file].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// A public key in PEM (ECDSA P-256) that must have signed it, in addition to the daemon's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// If this daemon has the same snapshot under any tag, return it and fetch nothing. Otherwise, without a tag, name it after the
    /// reference and its digest: `app-tag-0123456789ab`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reuse: bool,
}

/// The repository whose tags to list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRepository {
    /// `registry.example/team/app`.
    pub repository: String,
    /// Credentials for the registry [default: those of the daemon's Docker config file].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// The tags of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepositoryTags {
    pub repository: String,
    /// In the registry's order, at most 1000.
    pub tags: Vec<RepositoryTag>,
    /// Whether there are more entries.
    pub truncated: bool,
}

/// A tag of a repository, and what it names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepositoryTag {
    pub tag: String,
    /// The digest of the manifest: `sha256:…`.
    pub digest: String,
    /// Whether it is a snapshot that can be pulled.
    pub snapshot: bool,
    /// The media type of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Its compressed size, if the registry reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// When the snapshot was made, if its manifest has the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_unix: Option<u64>,
}

/// How an archive is taken in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LoadSnapshot {
    /// The tag on this daemon [default: the tag of the sender].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// The result of a push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushedSnapshot {
    /// Its reference with the digest.
    pub reference: String,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Bytes that the registry already had, or mounted from another repository.
    pub present_bytes: u64,
}

/// Resolves a reference to a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveSnapshot {
    /// `registry.example/team/app:tag`, or with `@sha256:…`.
    pub reference: String,
    /// Credentials for the registry [default: those of the daemon's Docker config file].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// A snapshot in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResolvedSnapshot {
    /// Registry and repository, in the form that signatures and policies use.
    pub repository: String,
    /// The digest to sign and to verify: `sha256:…`.
    pub digest: String,
}

/// Adds a signature to a snapshot in a registry. The client makes it with its private key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddSnapshotSignature {
    /// The signed snapshot, by digest: `registry.example/team/app@sha256:…`.
    pub reference: String,
    /// The signed JSON, in cosign's simple signing format. At most 64 KiB.
    pub payload: String,
    /// The ECDSA signature of the payload's SHA-256, as base64 of DER.
    pub signature: String,
    /// The public key in PEM (ECDSA P-256). The signature is checked with it.
    pub key: String,
    /// Credentials for the registry [default: those of the daemon's Docker config file].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// A signature in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSignature {
    /// The signed snapshot, by digest.
    pub reference: String,
    /// The first 16 digits of the SHA-256 of the public key's DER form.
    pub key: String,
    /// False if this key had already signed it: the existing signature is kept.
    pub added: bool,
}
