//! What is written down of each VM process, so that a daemon that starts again knows what it finds.
//!
//! Records are replaced whole, and not synced: they are about processes, which end when the host does.
//!
//! A record that is there and cannot be read (an I/O error, damage, a newer daemon's) is an error, never the same as no record:
//! what it is about may be in use, so nothing is removed or ended for want of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::iter;
use std::path::{Path, PathBuf};

use forkd_devices::disk::Layer;
use forkd_image::digest::Digest;
use forkd_net::{Policy, Slot};
use forkd_proto::agent::OLDEST_VERSION;
use forkd_proto::control::{CpuModel, Devices, Disk};
use forkd_proto::one_or_many;
use forkd_store::Tag;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::blocking::in_place;
use crate::fault;
use crate::ids::{LayerId, SandboxId};
use crate::limits::cgroup::Quota;
use crate::paths::PathError;
use crate::process::users::UserRecord;
use crate::project::Project;

const FILE: &str = "record.json";
const NEW: &str = "record.json.new";
const MAX_RECORD: u64 = 1 << 20;
/// The format of records. Those of before it was written have none, and are of the first.
const VERSION: u64 = 1;
const VERSION_FIELD: &str = "version";

/// The generation of a snapshot that was booted. Each fork on the way to another one adds one.
pub(crate) const BOOTED: u64 = 1;

/// A JSON object.
pub type Object = serde_json::Map<String, serde_json::Value>;

/// The hardware of a VM, and what it was booted from. The same for a whole family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    pub vcpus: u8,
    pub memory_bytes: u64,
    #[serde(default)]
    pub cpu: CpuModel,
    pub devices: Devices,
    /// The image below the first disk. No other has one.
    pub image: Option<Digest>,
    /// The version of the messages that its agent speaks. The oldest is not written: snapshots keep their digests.
    #[serde(default = "oldest_agent", skip_serializing_if = "is_oldest_agent")]
    pub agent_version: u32,
}

fn oldest_agent() -> u32 {
    OLDEST_VERSION
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_oldest_agent(version: &u32) -> bool {
    *version == OLDEST_VERSION
}

/// What files may have beside a VM's memory and disk: a console's log, a VM's state.
const SMALL_FILES: u64 = 64 << 20;

impl Shape {
    /// The largest file that a process of such a VM writes: a layer of a disk, or its memory.
    pub fn largest_file(&self) -> u64 {
        let layers = self.devices.disks.iter().filter_map(|disk| Layer::file_length(disk.bytes).ok());
        layers.fold(self.memory_bytes, u64::max).saturating_add(SMALL_FILES)
    }

    /// The image below each disk, if there is one.
    pub fn images(&self) -> impl Iterator<Item = Option<&Digest>> {
        iter::once(self.image.as_ref()).chain(iter::repeat(None)).take(self.devices.disks.len())
    }
}

/// The most room that the top layer of a disk takes: as much data as the disk may hold, the layer's header and map, and what a file
/// system keeps of where blocks are, which is most if each lies alone.
pub fn largest_top(disk: &Disk) -> Option<u64> {
    let around = Layer::file_length(disk.bytes).ok()? - disk.bytes;
    // A block of ext4's says where 340 others are, one of XFS's 250.
    Some(disk.limit_bytes.saturating_add(disk.limit_bytes / 128).saturating_add(around + (1 << 20)))
}

/// A sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SandboxRecord {
    pub id: SandboxId,
    pub snapshot: Tag,
    pub created_unix_ms: u64,
    pub expires_unix_ms: Option<u64>,
    pub metadata: BTreeMap<String, String>,
    /// Data of the requester. The engine does not read it.
    #[serde(default)]
    pub about: serde_json::Map<String, serde_json::Value>,
    /// Whether it is paused when its time is over, and not ended.
    #[serde(default)]
    pub pauses_at_expiry: bool,
    /// If traffic wakes it when it is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<WakeRecord>,
    /// Who has asked for it.
    #[serde(default)]
    pub owner: Option<String>,
    #[serde(default, skip_serializing_if = "Project::is_default")]
    pub project: Project,
    pub shape: Shape,
    /// One for each that its shape has.
    #[serde(default, rename = "disk", with = "one_or_many")]
    pub disks: Vec<DiskRecord>,
    /// Whose its process is.
    #[serde(default)]
    pub user: Option<UserRecord>,
    #[serde(default)]
    pub network: Option<NetworkRecord>,
    /// What its cgroup allows, if it has one.
    #[serde(default)]
    pub quota: Option<Quota>,
    /// The name of its cgroup. Without one it is `sandbox-ID`, which a sandbox leaves at its first branch.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// CPU time that it has used in cgroups that it has left.
    #[serde(default)]
    pub cpu_us_before: u64,
    pub branches: Vec<Tag>,
    /// How many branches it ever had. Names of removed ones are not given again.
    #[serde(default)]
    pub branches_made: u64,
    /// How many forks there were on the way here: see the agent's identity.
    pub generation: u64,
    /// Whether its requester was told of it. If not, no client knows of it.
    pub promised: bool,
    /// What it was made with, as one operation: one that was promised is a promise of all of them.
    #[serde(default)]
    pub group: Option<SandboxId>,
    /// During a rollback: what it becomes.
    #[serde(default)]
    pub rolling_back: Option<RollingBack>,
    /// While it is paused or resumed together with its expiry.
    #[serde(default)]
    pub changing: Option<Changing>,
}

/// A pause or a resume that has begun, for which the record has the new expiry already.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Changing {
    pub pauses: bool,
    /// What is right if it came to nothing.
    pub expires_before: Option<u64>,
}

/// A rollback that has begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollingBack {
    pub tag: Tag,
    pub generation: u64,
    /// The process that gives its place away. Another one in its place is the successor.
    pub from_pid: i32,
}

/// The network of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkRecord {
    pub slot: Slot,
    pub policy: Policy,
}

/// What traffic does to a paused sandbox: it runs again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WakeRecord {
    /// For so long, or without an expiry.
    pub ttl_secs: Option<u64>,
}

/// A disk of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskRecord {
    pub files: DiskFiles,
    /// During a branch or a rollback: what the VM may be using already instead.
    pub instead: Vec<DiskFiles>,
}

/// The files of a disk above the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskFiles {
    /// From the bottom up.
    pub frozen: Vec<LayerId>,
    pub top: LayerId,
}

/// A process to fork from. With a snapshot on disk, the same is beside its manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZygoteRecord {
    pub tag: Tag,
    /// The snapshot that it is a change of.
    pub parent: Option<Tag>,
    pub branched_from: Option<SandboxId>,
    pub created_unix_ms: u64,
    pub pause_us: Option<u64>,
    pub shape: Shape,
    /// The frozen layers of each disk, from the bottom up.
    #[serde(rename = "layers", with = "one_or_many::or_default")]
    pub disks: Vec<Vec<LayerId>>,
    /// Whose its process is. Of a snapshot on disk: whose it was.
    #[serde(default)]
    pub user: Option<UserRecord>,
    pub generation: u64,
    /// What the sandbox may reach that it is a branch of, and so what its children may.
    #[serde(default)]
    pub policy: Option<Policy>,
    /// The name of its cgroup. Without one it is `zygote-TAG`; a branch has that of the sandbox that it was made of.
    #[serde(default)]
    pub cgroup: Option<String>,
    /// Of a branch: whose memory limit its frozen memory counts against.
    #[serde(default)]
    pub owner: Option<String>,
    /// Who has asked for it. Other than its process' owner, it is kept on disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maker: Option<String>,
    #[serde(default, skip_serializing_if = "Project::is_default")]
    pub project: Project,
    /// Of a branch: the memory that only the sandbox had when it was made, which the branch keeps.
    #[serde(default)]
    pub frozen_bytes: u64,
    /// Whether the layers of its disks are checked whenever it is loaded: another process might have been able to write to them since they were
    /// hashed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub layers_unsealed: bool,
    /// Of one that was built: the digest of what it was made of (`snapshot/build.rs`). It stays on this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_key: Option<Digest>,
    /// Of one that was made of another snapshot: whether it has memory of a sandbox with users. See
    /// [`ZygoteRecord::has_user_memory`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_memory: Option<bool>,
    pub promised: bool,
}

/// What a snapshot is on every host: what its manifest says of it. The rest of a record is of one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortableRecord {
    /// Without its image, which has another name elsewhere.
    pub shape: Shape,
    /// Whether there is an image below the first disk.
    pub has_image: bool,
    /// How many frozen layers each disk has.
    pub layers: Vec<usize>,
    pub generation: u64,
    /// What the sandbox may reach that it is a branch of, and so what its children may.
    pub policy: Option<Policy>,
    /// Whether it has memory of a sandbox with users. Manifests of booted snapshots do not say it, and neither do those of
    /// older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_memory: Option<bool>,
}

impl PortableRecord {
    pub fn of(record: &ZygoteRecord) -> PortableRecord {
        PortableRecord {
            shape: Shape { image: None, ..record.shape.clone() },
            has_image: record.shape.image.is_some(),
            layers: record.disks.iter().map(Vec::len).collect(),
            generation: record.generation,
            policy: record.policy.clone(),
            user_memory: match record.branched_from {
                Some(_) => Some(true),
                None => record.user_memory,
            },
        }
    }

    /// As [`ZygoteRecord::has_user_memory`].
    pub fn has_user_memory(&self) -> bool {
        self.user_memory.unwrap_or(self.generation > BOOTED)
    }
}

impl ZygoteRecord {
    /// Whether it has memory of a sandbox with users, as a branch has, and every snapshot made of one. Where that was not
    /// recorded, it has unless it was booted.
    pub fn has_user_memory(&self) -> bool {
        self.branched_from.is_some() || self.user_memory.unwrap_or(self.generation > BOOTED)
    }

    /// The same without what is true of its process only.
    pub fn without_process(self) -> ZygoteRecord {
        ZygoteRecord { user: None, cgroup: None, owner: None, frozen_bytes: 0, ..self }
    }
}

/// What every record has.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct AnyRecord {
    #[serde(default)]
    pub user: Option<UserRecord>,
}

/// A record, manifest or directory that is there and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {}: {reason}", path.display())]
pub struct Unreadable {
    pub path: PathBuf,
    pub reason: String,
}

impl Unreadable {
    pub fn new(path: impl Into<PathBuf>, reason: impl ToString) -> Unreadable {
        Unreadable { path: path.into(), reason: reason.to_string() }
    }
}

/// Writes a record into a directory, in the place of the one that is there.
pub fn write(directory: &Path, record: &impl Serialize) -> Result<(), PathError> {
    let (new, path) = (directory.join(NEW), directory.join(FILE));
    let text = to_object(record).and_then(|object| serde_json::to_vec(&object));
    let text = text.map_err(io::Error::from).map_err(PathError::at("write", &path))?;
    if text.len() as u64 > MAX_RECORD {
        return Err(PathError::at("write", &path)(io::ErrorKind::FileTooLarge.into()));
    }
    in_place(|| {
        fs::write(&new, text).map_err(PathError::at("write", &new))?;
        fs::rename(&new, &path).map_err(PathError::at("rename", &new))
    })
}

/// The record in a directory. `None` if none was ever written there.
pub fn read<T: DeserializeOwned>(directory: &Path) -> Result<Option<T>, Unreadable> {
    let path = directory.join(FILE);
    let failed = |reason: String| Unreadable { path: path.clone(), reason };
    let read = in_place(|| {
        fault::read(&path)?;
        let mut text = Vec::new();
        File::open(&path)?.take(MAX_RECORD + 1).read_to_end(&mut text)?;
        Ok::<_, io::Error>(text)
    });
    let text = match read {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error.to_string())),
    };
    if text.len() as u64 > MAX_RECORD {
        return Err(failed(format!("more than {MAX_RECORD} bytes")));
    }
    let object = serde_json::from_slice(&text).map_err(|error| failed(error.to_string()))?;
    from_object(object).map(Some).map_err(failed)
}

/// A record as it is written: with the version of the format.
pub fn to_object(record: &impl Serialize) -> Result<Object, serde_json::Error> {
    let mut object: Object = serde_json::from_value(serde_json::to_value(record)?)?;
    object.insert(VERSION_FIELD.into(), VERSION.into());
    Ok(object)
}

/// A record of what was written. Another version, and fields that are not known here, are a newer daemon's.
pub fn from_object<T: DeserializeOwned>(mut object: Object) -> Result<T, String> {
    match object.remove(VERSION_FIELD) {
        None => {}
        Some(version) if version == VERSION => {}
        Some(version) => return Err(format!("format version {version}, expected {VERSION}")),
    }
    serde_json::from_value(object.into()).map_err(|error| error.to_string())
}

impl SandboxRecord {
    /// Daemons that did not know of waking kept it among what E2B's API keeps with a sandbox.
    pub(crate) fn take_over_wake(&mut self) {
        let Some(kept) = self.about.get_mut("e2b").and_then(|kept| kept.as_object_mut()) else { return };
        let ttl_secs = kept.remove("timeout").and_then(|seconds| seconds.as_u64());
        if kept.remove("auto_resume").is_some_and(|wakes| wakes == true) {
            self.wake = Some(WakeRecord { ttl_secs });
        }
    }

    /// What it is after it went back to one of its branches: those that came later are no longer its own.
    pub fn back_to(&mut self, tag: &Tag, generation: u64) {
        self.generation = generation;
        let kept = self.branches.iter().position(|branch| branch == tag);
        self.branches.truncate(kept.map_or(0, |kept| kept + 1));
        self.rolling_back = None;
    }
}

impl DiskRecord {
    pub fn new(frozen: Vec<LayerId>, top: LayerId) -> DiskRecord {
        DiskRecord { files: DiskFiles { frozen, top }, instead: Vec::new() }
    }

    /// Every file that the disk is or may be made of.
    pub fn all(&self) -> impl Iterator<Item = &LayerId> {
        [&self.files]
            .into_iter()
            .chain(&self.instead)
            .flat_map(|files| files.frozen.iter().chain([&files.top]))
    }

    /// What is right when only the beginning of a change is known: the files that the VM process says it uses, by their
    /// inode numbers, if they can be at all.
    pub fn resolve(self, used: &[u64], inode: impl Fn(&LayerId) -> Option<u64>) -> Option<DiskRecord> {
        if self.instead.is_empty() {
            return Some(self);
        }
        let is_used = |files: &DiskFiles| {
            let inodes: Option<Vec<u64>> = files.frozen.iter().chain([&files.top]).map(&inode).collect();
            inodes.is_some_and(|inodes| inodes == used)
        };
        let files = [self.files].into_iter().chain(self.instead).find(is_used)?;
        Some(DiskRecord { files, instead: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(number: u64) -> LayerId {
        format!("l{number}").try_into().unwrap()
    }

    fn number(layer: &LayerId) -> Option<u64> {
        layer.as_str()[1..].parse().ok()
    }

    fn files(frozen: &[u64], top: u64) -> DiskFiles {
        DiskFiles { frozen: frozen.iter().copied().map(layer).collect(), top: layer(top) }
    }

    /// As a daemon wrote it.
    fn sandbox() -> SandboxRecord {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/records/sandbox-1.json");
        from_object(serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn what_e2b_s_api_kept_of_waking_is_taken_over() {
        let about = |wakes: bool| {
            let kept = serde_json::json!({ "e2b": { "template": "x", "timeout": 90, "auto_resume": wakes } });
            SandboxRecord { about: kept.as_object().unwrap().clone(), ..sandbox() }
        };
        for (wakes, expected) in [(true, Some(WakeRecord { ttl_secs: Some(90) })), (false, None)] {
            let mut record = about(wakes);
            record.take_over_wake();
            assert_eq!(record.wake, expected);
            assert_eq!(
                serde_json::Value::from(record.about),
                serde_json::json!({ "e2b": { "template": "x" } })
            );
        }
        let mut plain = sandbox();
        plain.wake = Some(WakeRecord { ttl_secs: None });
        plain.take_over_wake();
        assert!(plain.wake.is_some(), "what is known stays");
    }

    #[test]
    fn a_change_that_was_cut_short_is_resolved_by_what_is_in_use() {
        let instead = vec![files(&[1], 3), files(&[1, 2], 3)];
        let disk = DiskRecord { files: files(&[1], 2), instead };
        let resolved = |used: &[u64]| disk.clone().resolve(used, number);
        let settled = |files| Some(DiskRecord { files, instead: vec![] });
        assert_eq!(resolved(&[1, 2]), settled(files(&[1], 2)), "it never began");
        assert_eq!(resolved(&[1, 3]), settled(files(&[1], 3)), "nothing had been written");
        assert_eq!(resolved(&[1, 2, 3]), settled(files(&[1, 2], 3)));
        // A process that was taken over says what it likes.
        for lie in [&[][..], &[1], &[9], &[1, 9], &[2, 3], &[1, 2, 9], &[1, 2, 3, 4]] {
            assert_eq!(resolved(lie), None, "{lie:?}");
        }
        let quiet = DiskRecord { files: files(&[1], 2), instead: vec![] };
        assert_eq!(quiet.clone().resolve(&[9], number), Some(quiet), "nothing is in doubt");
    }

    /// Written by a daemon that knew of no cgroup but that of the name, and of no memory of branches.
    #[test]
    fn records_of_an_older_daemon_are_read() {
        let sandbox = r#"{"id":"i4c","snapshot":"base","created_unix_ms":1,"expires_unix_ms":null,"metadata":{},
            "shape":{"vcpus":1,"memory_bytes":67108864,"devices":{"console":true,"console_input":false,"disk":null,"disk_layers":0,
            "net":null,"vsock":null,"entropy":false,"mailbox":false},"image":null},"disk":null,"user":null,"network":null,
            "quota":{"memory_bytes":136314880,"cpu_millis":1000,"cpu_weight":100,"pids":17,
                     "io":{"read_bytes":null,"write_bytes":null,"operations":null}},
            "branches":["i4c-1"],"generation":2,"promised":true,"group":null,"rolling_back":null}"#;
        let sandbox: SandboxRecord = serde_json::from_str(sandbox).unwrap();
        assert_eq!((sandbox.cgroup, sandbox.cpu_us_before), (None, 0));
        let zygote = r#"{"tag":"i4c-1","parent":"base","branched_from":"i4c","created_unix_ms":1,"pause_us":900,
            "shape":{"vcpus":1,"memory_bytes":67108864,"devices":{"console":true,"console_input":false,"disk":null,"disk_layers":0,
            "net":null,"vsock":null,"entropy":false,"mailbox":false},"image":null},"layers":[],"user":null,
            "generation":2,"policy":null,"promised":true}"#;
        let zygote: ZygoteRecord = serde_json::from_str(zygote).unwrap();
        assert_eq!((zygote.cgroup.as_ref(), zygote.owner.as_ref(), zygote.frozen_bytes), (None, None, 0));
        let branch = ZygoteRecord { cgroup: Some("x".into()), frozen_bytes: 1, ..zygote.clone() };
        assert_eq!(branch.without_process(), zygote);
    }

    /// Snapshots that older daemons made of others do not say whose memory they have.
    #[test]
    fn what_is_not_known_to_be_booted_counts_as_somebody_s_memory() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/records/zygote-2.json");
        let record: ZygoteRecord =
            from_object(serde_json::from_slice(&fs::read(path).unwrap()).unwrap()).unwrap();
        for (is_branch, said, generation, expected) in [
            (true, None, 2, true),
            (true, Some(false), 1, true),
            (false, Some(true), 1, true),
            (false, Some(false), 3, false),
            (false, None, 1, false),
            (false, None, 2, true),
        ] {
            let branched_from = record.branched_from.clone().filter(|_| is_branch);
            let record = ZygoteRecord { branched_from, user_memory: said, generation, ..record.clone() };
            assert_eq!(record.has_user_memory(), expected, "{is_branch} {said:?} {generation}");
            // Elsewhere the same is known, without the sandbox.
            let portable = PortableRecord::of(&record);
            let (branched_from, user_memory) = (None, portable.user_memory);
            let there = ZygoteRecord { branched_from, user_memory, ..record };
            assert_eq!(there.has_user_memory(), expected, "{is_branch} {said:?} {generation}");
        }
    }

    /// Each file is a record as some daemon has written it. What is read once is read for good: when records change, the change comes
    /// with a file more, and no file changes or goes.
    #[test]
    fn records_of_every_daemon_are_read() {
        fn check<T: DeserializeOwned + Serialize>(kind: &str) {
            let file = |number: u32| format!("{}/records/{kind}-{number}.json", env!("CARGO_MANIFEST_DIR"));
            let mut newest = None;
            for path in (1..).map(file).take_while(|path| Path::new(path).exists()) {
                let object: Object = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
                let record: T = from_object(object.clone()).unwrap_or_else(|error| panic!("{path}: {error}"));
                newest = Some((object, record));
            }
            let (object, record) = newest.expect("there is one");
            assert_eq!(
                to_object(&record).unwrap(),
                object,
                "{kind}: the newest file has not all that is written"
            );
        }
        check::<SandboxRecord>("sandbox");
        check::<ZygoteRecord>("zygote");
    }

    /// The last files from before there were several disks: daemons from then read what is written of one.
    #[test]
    fn one_disk_is_written_as_before() {
        fn check<T: DeserializeOwned + Serialize>(name: &str) -> T {
            let path = format!("{}/records/{name}.json", env!("CARGO_MANIFEST_DIR"));
            let object: Object = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let record = from_object(object.clone()).unwrap();
            assert_eq!(to_object(&record).unwrap(), object);
            record
        }
        let sandbox: SandboxRecord = check("sandbox-2");
        assert_eq!((sandbox.disks.len(), sandbox.shape.devices.disks.len()), (1, 1));
        let zygote: ZygoteRecord = check("zygote-1");
        assert_eq!(zygote.disks, [[layer(1), layer(2)]]);
    }

    #[test]
    fn several_disks_are_read_as_they_were_written() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/records/sandbox-3.json");
        let text = fs::read(path).unwrap();
        let sandbox: SandboxRecord = from_object(serde_json::from_slice(&text).unwrap()).unwrap();
        let found: Vec<_> = sandbox.disks.iter().map(|disk| disk.files.clone()).collect();
        assert_eq!(found, [files(&[1, 2], 3), files(&[], 5)]);
        let images: Vec<_> = sandbox.shape.images().map(|image| image.is_some()).collect();
        assert_eq!(images, [true, false]);
        assert_eq!(sandbox.shape.devices.disks.iter().map(|disk| disk.layers).collect::<Vec<_>>(), [0, 1]);
        let text = String::from_utf8(text).unwrap().replace("\"base\": false", "\"base\": 0");
        let error = from_object::<SandboxRecord>(serde_json::from_str(&text).unwrap()).unwrap_err();
        assert!(error.contains("did not match"), "{error}");
    }

    /// Each disk of a VM limits its files, and only the largest counts.
    #[test]
    fn the_largest_file_is_of_the_largest_disk() {
        let shape = |sizes: &[u64]| {
            let disk = |bytes: &u64| Disk {
                bytes: *bytes,
                limit_bytes: *bytes,
                base: false,
                layers: 0,
                read_only: false,
            };
            let devices = Devices { disks: sizes.iter().map(disk).collect(), ..Devices::default() };
            Shape { devices, memory_bytes: 1 << 20, ..sandbox().shape }
        };
        let largest = |sizes: &[u64]| shape(sizes).largest_file();
        assert_eq!(largest(&[]), (1 << 20) + SMALL_FILES);
        assert!(largest(&[1 << 30]) > 1 << 30);
        assert_eq!(largest(&[1 << 20, 1 << 30]), largest(&[1 << 30]));
    }

    #[test]
    fn records_are_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(read::<DiskRecord>(directory.path()), Ok(None));
        let mut disk = DiskRecord::new(vec![], layer(1));
        write(directory.path(), &disk).unwrap();
        disk.instead.push(files(&[1], 2));
        write(directory.path(), &disk).unwrap();
        assert_eq!(read(directory.path()), Ok(Some(disk.clone())));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        disk.instead = vec![files(&[1], 2); 1 << 16];
        assert!(write(directory.path(), &disk).is_err(), "nobody could read it");
        assert!(read::<DiskRecord>(directory.path()).unwrap().is_some_and(|disk| disk.instead.len() == 1));
    }

    #[test]
    fn a_record_that_cannot_be_read_is_not_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE);
        let whole = r#"{"files":{"frozen":[],"top":"l1"},"instead":[]"#;
        let reason = |text: &str| {
            fs::write(&path, text).unwrap();
            read::<DiskRecord>(directory.path()).unwrap_err().reason
        };
        assert!(reason(whole).contains("EOF"), "truncated");
        assert!(reason("").contains("EOF"), "empty");
        assert_eq!(reason(&format!("{whole},\"version\":2}}")), "format version 2, expected 1");
        assert!(reason(&format!("{whole},\"later\":0}}")).contains("unknown field `later`"));
        assert!(reason(&" ".repeat(2 << 20)).contains("more than"));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        let error = read::<DiskRecord>(directory.path()).unwrap_err();
        assert!(error.to_string().contains("record.json: Is a directory"), "{error}");
    }
}
