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
    /// Its other names. Each can be used in the place of the tag.
    #[serde(default)]
    pub names: Vec<String>,
    /// The project that it belongs to.
    #[serde(default = "default_project")]
    pub project: String,
    /// Whether every project may fork from it.
    #[serde(default)]
    pub public: bool,
    pub status: SnapshotStatus,
    pub created_at_unix: u64,
    /// The snapshot that this one is a change of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The snapshots that are changes of this one.
    pub children: Vec<String>,
    /// The sandbox that it is a branch of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branched_from: Option<String>,
    /// The image that it was booted from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    pub vcpus: u8,
    pub memory_mib: u64,
    pub disk_mib: u64,
    /// What its sandboxes are shown of the host's CPU.
    #[serde(default)]
    pub cpu: Cpu,
    /// Whether its sandboxes have a network.
    #[serde(default)]
    pub network: bool,
    /// Of one that was built: the digest of what it was made of. A build with the same key gets this snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_key: Option<String>,
    /// How long the sandbox stood still for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_us: Option<u64>,
    /// What it takes on disk, as far as it is there.
    pub size: SnapshotSize,
    /// Whether a process is there to fork from at once.
    pub loaded: bool,
    /// The memory that this process holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<SnapshotMemory>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a guest is shown of the host's CPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub enum Cpu {
    /// All that guests may have: no virtualisation of their own, no counters, no enclaves.
    #[default]
    #[serde(rename = "host")]
    Host,
    /// What every CPU of the level x86-64-v2 has, and no more.
    #[serde(rename = "x86-64-v2")]
    V2,
    /// What every CPU of the level x86-64-v3 has, and no more.
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
    /// It can be forked from, and is gone with the host.
    Live,
    /// The same, and it is being written to disk.
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

/// The memory of a snapshot's process. Of a branch, this is the memory of the sandbox at that time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotMemory {
    /// Memory that only this process maps: the host gets it back when the snapshot is removed.
    pub private_bytes: u64,
    /// Memory that it shares with sandboxes and other snapshots.
    pub shared_bytes: u64,
}

/// The first part of the tags of snapshots that are named after what they are made of.
pub const UNNAMED_PREFIX: &str = "run-";
/// The first part of the tags of snapshots that came from elsewhere because others are based on them.
pub const BASE_PREFIX: &str = "base-";

/// Boots an image, or forks a snapshot, runs commands and code in it, and freezes it. One of `image` and `snapshot`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Without one, the snapshot is named after what it is made of, and made once: the same request gets the same snapshot, also while
    /// it is being made for somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// A name or an id of an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// A snapshot to base the new one on, which has only what differs from it. Needs a tag, and has what the guest is: of the other
    /// fields, only `env`, `run`, `warm_up` and `wait` can be given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// A name of a kernel; without one, the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 32)]
    pub vcpus: Option<u8>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 64, maximum = 1048576)]
    pub memory_mib: Option<u64>,
    /// What its sandboxes may write to their disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1048576)]
    pub disk_mib: Option<u64>,
    /// What the guest is shown of the host's CPU. A snapshot of a level can be used on every host that has the level.
    #[serde(default, skip_serializing_if = "Cpu::is_host")]
    pub cpu: Cpu,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// A program that runs from the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyProbe>,
    /// Commands to run, one after another, as root with `sh -c`, before `warm_up`. One that fails ends it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub run: Vec<String>,
    /// Code to run, one after another, before the guest is frozen.
    #[serde(default)]
    pub warm_up: Vec<WarmUp>,
    /// Whether the guest sees the certificates and proxy settings of the daemon's host, for hosts behind an intercepting proxy:
    /// in its environment, in /run/forkd, and in its own file of trusted certificates, if it has one. Needs the scope admin.
    #[serde(default)]
    pub host_certs: bool,
    /// Whether it is for programs that are written for E2B: commands, files and code are those of the user `user` unless a call
    /// names another, in /home/user, with passwordless sudo, whatever the image has.
    #[serde(default)]
    pub e2b: bool,
    /// Whether the guest has a network device. Without one, its sandboxes reach nothing but what the daemon carries to them.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub network: bool,
    /// Whether the answer comes when the snapshot is on disk, or as soon as it can be forked from.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub wait: bool,
}

fn yes() -> bool {
    true
}

/// Builds a snapshot: makes it, unless there is one of the same contents, and gives it a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BuildSnapshot {
    /// The name that it gets: 1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit. A snapshot that was built under
    /// this name before loses it, and stays.
    pub name: String,
    /// What it is made of, without a tag: that is the name with digits of the key.
    pub contents: CreateSnapshot,
    /// Whether it is made anew even if there is one of the same contents.
    #[serde(default)]
    pub no_cache: bool,
    /// Whether nothing is made, and the answer says what would be.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a build has done, or would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BuildOutcome {
    /// The name had a snapshot of the same contents already.
    Unchanged,
    /// There was a snapshot of the same contents, and the name is one of its names now.
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

/// What came of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BuiltSnapshot {
    pub name: String,
    pub outcome: BuildOutcome,
    /// The digest of what it is made of. Missing if the snapshot that it is based on would be made first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Missing if it would be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<Snapshot>,
    /// The tag of the snapshot that had the name before, if it was another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced: Option<String>,
}

/// When the guest is ready. One of `port` and `command`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReadyProbe {
    /// Somebody listens on this port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// This command ends with 0.
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

/// A line of the stream that is the answer when `application/x-ndjson` is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// What is being done now.
    Step(String),
    /// A line of what a step prints.
    Output(String),
    /// The last line: it is done.
    Snapshot(Box<Snapshot>),
    /// The last line of a build: it is done.
    Built(Box<BuiltSnapshot>),
    /// The last line: it failed.
    Error(crate::error::ErrorBody),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    pub snapshots: Vec<Snapshot>,
}

/// A snapshot, those it is based on and those that are based on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotHistory {
    /// The snapshot that was asked for.
    pub tag: String,
    /// Its chain from the base up, itself, then its dependents, each directly behind its parent or a sibling's dependents. Snapshots that
    /// the caller may not see are left out.
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
    /// How many snapshots it is based on, directly or not.
    pub depth: u32,
    pub created_at_unix: u64,
    /// The snapshot that it is based on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The snapshots that are directly based on it.
    pub dependents: Vec<String>,
    /// Bytes on disk that only it and its dependents use: its memory, its state, and the disk layers that came with it.
    pub own_bytes: u64,
    /// Bytes on disk that it uses of others: the memory of the snapshots it is based on, their disk layers, and the image.
    pub shared_bytes: u64,
}

/// Whether a snapshot has all of its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotKind {
    /// All of its memory.
    Full,
    /// Only the memory that differs from its parent's.
    Diff,
}

/// Every file of a snapshot, and of what it is based on, was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotVerification {
    pub tag: String,
    /// Whether all files are as they were written.
    pub intact: bool,
    /// How many snapshots were read: itself and those it is based on.
    pub snapshots: u32,
    /// How many disk layers were read, the image included.
    pub disk_layers: u32,
    /// How many bytes were read. Of a disk layer, also its holes.
    pub bytes: u64,
    /// The first damaged file, if there is one. What comes behind it was not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<SnapshotDamage>,
}

/// A file that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDamage {
    /// The file, below the daemon's directory.
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
    /// Whether those that are changes of it go, too.
    #[serde(default)]
    pub cascade: bool,
    /// Whether its other names go, too. Without this, a snapshot that has any is not removed.
    #[serde(default)]
    pub all_names: bool,
}

/// Which snapshots are removed that nobody needs. Those that sandboxes were forked from or can be rolled back to, public ones, and those
/// that others are based on which stay, stay in any case.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneSnapshots {
    /// Those that were not forked for so long.
    #[serde(default)]
    pub unused_seconds: u64,
    /// Stop as soon as what is left takes no more than this on disk; those that were not used for the longest time go first.
    #[serde(default)]
    pub keep_mib: u64,
    /// Whether those that somebody has named go, too, and not only those named after what they are made of. Needs `unused_seconds` or
    /// `keep_mib`.
    #[serde(default)]
    pub named: bool,
    /// Only those of this project. Without it, all those that the caller may remove.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Only say what would go.
    #[serde(default)]
    pub dry_run: bool,
}

/// What was removed, or would be, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedSnapshots {
    pub snapshots: Vec<PrunedSnapshot>,
    /// What the disk has back.
    pub freed_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PrunedSnapshot {
    pub tag: String,
    /// When it was forked last, or made.
    pub used_at_unix: u64,
    pub freed_bytes: u64,
}

/// How a snapshot gets another name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct NameSnapshot {
    /// Whether the name is moved if another snapshot has it.
    #[serde(default)]
    pub force: bool,
}

/// What was removed, in this order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedSnapshots {
    pub removed: Vec<String>,
    /// The name that was removed, if what was named is not the tag of a snapshot but another of its names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

/// Sends a snapshot to a registry, with all that it stands on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PushSnapshot {
    /// Where to: `registry.example/team/app:tag`.
    pub reference: String,
    /// Without them, those of the daemon's Docker config file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// Repositories of the same registry that may have some of it already, without the registry's name. Those that the snapshot, or one that
    /// it is based on, was pushed to or pulled from are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_from: Vec<String>,
    /// Adds it to what the tag names, as the variant with this name (1-63 of a-z, 0-9 and `._-`), in the place of an earlier one with that
    /// name. Whoever pulls the tag gets the first variant that fits the host. Without it, the tag then names this snapshot alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// A snapshot of a sandbox has the memory of whoever used it, and so have those that are based on one. They are pushed only with
    /// this.
    #[serde(default)]
    pub yes: bool,
}

/// Fetches a snapshot from a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PullSnapshot {
    /// Where from: `registry.example/team/app:tag`, or with `@sha256:…`.
    pub reference: String,
    /// What it is called here. Without one, what its sender calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Without them, those of the daemon's Docker config file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
    /// A public key in PEM (ECDSA P-256) that must have signed it, beside what the daemon's policy demands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// If this very snapshot is here, under whatever tag, answer with it and fetch nothing. If it is not and no tag is given, it is
    /// called after the reference and its digest: `app-tag-0123456789ab`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reuse: bool,
}

/// Whose tags are listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListRepository {
    /// `registry.example/team/app`.
    pub repository: String,
    /// Without them, those of the daemon's Docker config file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// The tags of a repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepositoryTags {
    pub repository: String,
    /// In the registry's order, at most 1000.
    pub tags: Vec<RepositoryTag>,
    /// Whether there are more.
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
    /// The type of what it is, as a media type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Compressed bytes, if the registry says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// When the snapshot was made, if its manifest says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at_unix: Option<u64>,
}

/// How an archive is taken in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LoadSnapshot {
    /// What it is called here. Without one, what its sender calls it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// What a push has done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushedSnapshot {
    /// Where it is, by its digest.
    pub reference: String,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Bytes that the registry had already, or took from another repository.
    pub present_bytes: u64,
}

/// Asks what a reference to a registry names now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveSnapshot {
    /// `registry.example/team/app:tag`, or with `@sha256:…`.
    pub reference: String,
    /// Without them, those of the daemon's Docker config file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// A snapshot in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ResolvedSnapshot {
    /// Registry and repository, as signatures and policies name them.
    pub repository: String,
    /// The digest to sign and to verify: `sha256:…`.
    pub digest: String,
}

/// Stores a signature of a snapshot that is in a registry. It is made where the private key is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddSnapshotSignature {
    /// What was signed, by its digest: `registry.example/team/app@sha256:…`.
    pub reference: String,
    /// The JSON that was signed, in the form of cosign's simple signing. At most 64 KiB.
    pub payload: String,
    /// ECDSA of the payload's SHA-256, as DER in base64.
    pub signature: String,
    /// The public key in PEM (ECDSA P-256). The signature is checked with it.
    pub key: String,
    /// Without them, those of the daemon's Docker config file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<Credentials>,
}

/// A signature that is in a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSignature {
    /// What it is of, by its digest.
    pub reference: String,
    /// The first 16 digits of the SHA-256 of the public key's DER form.
    pub key: String,
    /// False if this key had signed it before: that signature stays.
    pub added: bool,
}
