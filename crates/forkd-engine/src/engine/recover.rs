//! Recover: what a daemon that starts finds of the one before it.
//!
//! The order matters. Zygotes first: one that was asked for forks by a daemon that died answers a new client only when it
//! has done all of them, so nothing appears later in a directory that was found empty. Then sandboxes, then what is left.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forkd_proto::control::{Command, Reply, StateName};
use forkd_store::Tag;

use super::network::NetworksFound;
use super::sandbox::{self, SandboxState};
use super::snapshot::{self, SnapshotStatus, Zygote};
use super::{EngineError, Shared};
use crate::control::CallError;
use crate::ids::{LayerId, SandboxId};
use crate::lasting::{Found, Lasting, LastingError};
use crate::places::PlaceError;
use crate::record::{self, RollingBack, SandboxRecord, ZygoteRecord};

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    pub sandboxes: Vec<SandboxId>,
    /// Snapshots with a process.
    pub zygotes: Vec<Tag>,
    /// Snapshots on disk.
    pub stored: Vec<Tag>,
    /// Directories of processes that do not answer. They are left as they are, and so is what they use.
    pub mute: Vec<PathBuf>,
    /// Directories, files and processes that were nobody's.
    pub removed: usize,
    pub networks: NetworksFound,
}

/// What is in a directory.
enum Seen {
    Alive(Found, StateName),
    Dead,
    /// A process that is there and says nothing: stopped, or stuck.
    Mute,
}

/// What became of a directory.
pub(super) enum Settled<R> {
    Adopted(R),
    /// Left as it is, with what its record says, if that is a promise.
    Mute(Option<R>),
    Removed,
}

pub(super) async fn recover(shared: &Arc<Shared>) -> Result<Recovered, EngineError> {
    let mut recovered = Recovered { removed: shared.store.sweep()?, ..Recovered::default() };
    let mut used = BTreeSet::new();
    let stored = stored(shared)?;
    for directory in directories(&shared.places.zygotes())? {
        match settle_zygote(shared, &directory, &stored).await? {
            Settled::Adopted(record) => {
                used.extend(record.layers);
                recovered.zygotes.push(record.tag);
            }
            Settled::Mute(record) => {
                record.iter().filter_map(|record| record.user).for_each(|user| shared.users.keep(user));
                used.extend(record.into_iter().flat_map(|record| record.layers));
                recovered.mute.push(directory);
            }
            Settled::Removed => recovered.removed += 1,
        }
    }
    for record in stored {
        used.extend(record.layers.iter().cloned());
        recovered.stored.push(record.tag.clone());
        if let Some(name) = shared.snapshots.reserve(&record.tag) {
            name.fill(snapshot::own_stored(shared, record));
        }
    }
    let sandboxes = directories(&shared.places.sandboxes())?;
    promise_groups(&sandboxes)?;
    for directory in sandboxes {
        match settle_sandbox(shared, &directory).await? {
            Settled::Adopted(record) => {
                used.extend(record.disk.iter().flat_map(|disk| disk.all()).cloned());
                recovered.sandboxes.push(record.id);
            }
            Settled::Mute(record) => {
                record.iter().filter_map(|record| record.user).for_each(|user| shared.users.keep(user));
                let disk = record.and_then(|record| record.disk);
                used.extend(disk.iter().flat_map(|disk| disk.all()).cloned());
                recovered.mute.push(directory);
            }
            Settled::Removed => recovered.removed += 1,
        }
    }
    recovered.removed += remove_unused(&shared.places.layers(), &used, Duration::ZERO)?;
    recovered.removed += shared.sweep_cgroups();
    Ok(recovered)
}

/// Writes down for each sandbox what the promise of another one was for it, too. That one may go at any time from now on.
fn promise_groups(sandboxes: &[PathBuf]) -> Result<(), PlaceError> {
    let read = |directory: &PathBuf| Some((directory.clone(), record::read::<SandboxRecord>(directory)?));
    let records: Vec<_> = sandboxes.iter().filter_map(read).collect();
    let promised = records.iter().filter(|(_, record)| record.promised);
    let groups: BTreeSet<_> = promised.filter_map(|(_, record)| record.group.clone()).collect();
    for (directory, mut record) in records {
        if !record.promised && record.group.as_ref().is_some_and(|group| groups.contains(group)) {
            record.promised = true;
            record::write(&directory, &record)?;
        }
    }
    Ok(())
}

/// Adopts what is in a zygote's directory, or ends and removes it.
pub(super) async fn settle_zygote(
    shared: &Arc<Shared>,
    directory: &Path,
    stored: &[ZygoteRecord],
) -> Result<Settled<ZygoteRecord>, EngineError> {
    let record = record::read::<ZygoteRecord>(directory).filter(|record| record.promised);
    match (record, look(directory).await) {
        // One that a daemon has started and not told what to load is none.
        (Some(record), Seen::Alive(found, StateName::Zygote)) => {
            adopt_zygote(shared, record.clone(), found, stored);
            Ok(Settled::Adopted(record))
        }
        (record, Seen::Mute) => Ok(Settled::Mute(record)),
        (_, seen) => remove(directory, seen).map(|()| Settled::Removed),
    }
}

/// The same for a sandbox's.
pub(super) async fn settle_sandbox(
    shared: &Arc<Shared>,
    directory: &Path,
) -> Result<Settled<SandboxRecord>, EngineError> {
    let record = record::read::<SandboxRecord>(directory).filter(|record| record.promised);
    match (record, look(directory).await) {
        (Some(record), Seen::Alive(found, state)) => match adopt_sandbox(shared, record, found, state) {
            Ok(record) => Ok(Settled::Adopted(record)),
            Err(found) => remove(directory, Seen::Alive(found, state)).map(|()| Settled::Removed),
        },
        (record, Seen::Mute) => Ok(Settled::Mute(record)),
        (_, seen) => remove(directory, seen).map(|()| Settled::Removed),
    }
}

/// No process that can be talked to takes longer to say who it is.
const ANSWER: Duration = Duration::from_secs(10);

/// What is on disk, and was written by an engine.
pub(super) fn stored(shared: &Shared) -> Result<Vec<ZygoteRecord>, EngineError> {
    let sealed = shared.store.list()?.into_iter().filter_map(|listed| listed.manifest.ok());
    let about = sealed.map(|sealed| serde_json::Value::Object(sealed.manifest.about));
    let records = about.filter_map(|about| serde_json::from_value::<ZygoteRecord>(about).ok());
    // What a file says of a process is not true of one that is here.
    Ok(records.map(ZygoteRecord::without_process).collect())
}

fn adopt_zygote(shared: &Arc<Shared>, mut record: ZygoteRecord, found: Found, stored: &[ZygoteRecord]) {
    let on_disk = stored.iter().any(|stored| stored.tag == record.tag);
    let status = if on_disk { SnapshotStatus::Ready } else { SnapshotStatus::Live };
    let (mut process, events) = found.process;
    shared.find_cgroup_of_zygote(&mut record, process.pid);
    process.user = record.user.map(|user| shared.users.found(user));
    if let Some(name) = shared.snapshots.reserve(&record.tag) {
        name.fill(snapshot::own(shared, Arc::new(Zygote { process, record }), events, status));
    }
}

/// Takes a sandbox over. One whose disk cannot be what its process says is given back, to be ended.
fn adopt_sandbox(
    shared: &Arc<Shared>,
    mut record: SandboxRecord,
    found: Found,
    state: StateName,
) -> Result<SandboxRecord, Found> {
    if let Some(disk) = record.disk.take() {
        let inode = |id: &LayerId| fs::metadata(shared.places.layer(id)).ok().map(|file| file.ino());
        match disk.resolve(&found.disk, inode) {
            Some(disk) => record.disk = Some(disk),
            None => return Err(found),
        }
    }
    let mut state = match state {
        StateName::Running => SandboxState::Running,
        StateName::Paused => SandboxState::Paused,
        StateName::Empty | StateName::Zygote => return Err(found),
    };
    let Some(name) = shared.sandboxes.reserve(&record.id) else { return Err(found) };
    let rolled_back = record.rolling_back.take().filter(|begun| begun.from_pid != found.process.0.pid);
    if let Some(RollingBack { tag, generation, .. }) = &rolled_back {
        record.back_to(tag, *generation);
        state = SandboxState::Starting;
    }
    shared.find_cgroup_of_sandbox(&mut record, found.process.0.pid);
    // Written again: what was in doubt is not any more.
    let _ = record::write(&shared.places.sandbox(&record.id), &record);
    let mut process = found.process;
    process.0.user = record.user.map(|user| shared.users.found(user));
    let handle = sandbox::own(shared, record.clone(), process, state);
    if rolled_back.is_some() {
        // It may take the guest a while to become somebody, and others are to be found meanwhile.
        let handle = handle.clone();
        tokio::spawn(async move { handle.identify().await });
    }
    name.fill(handle);
    Ok(record)
}

pub(super) fn directories(parent: &Path) -> Result<Vec<PathBuf>, PlaceError> {
    let entries = fs::read_dir(parent).map_err(PlaceError::at("list", parent))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(PlaceError::at("list", parent)));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

async fn look(directory: &Path) -> Seen {
    let asked = async {
        let Some(found) = Lasting::find(directory).await? else { return Ok(None) };
        match found.process.0.control.call(Command::Stats, &[]).await {
            Ok((Reply::Stats(stats), _)) => Ok(Some((found, stats.state))),
            Ok((reply, _)) => Err(LastingError::Answer(reply)),
            Err(CallError::Gone) => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    match tokio::time::timeout(ANSWER, asked).await {
        Ok(Ok(Some((found, state)))) => Seen::Alive(found, state),
        Ok(Ok(None)) => Seen::Dead,
        Ok(Err(_)) | Err(_) => Seen::Mute,
    }
}

/// Ends what is in a directory, and removes it.
fn remove(directory: &Path, seen: Seen) -> Result<(), EngineError> {
    if let Seen::Alive(found, _) = seen {
        found.process.0.kill();
    }
    Ok(fs::remove_dir_all(directory).map_err(PlaceError::at("remove", directory))?)
}

pub(super) fn is_old(path: &Path, age: Duration) -> bool {
    let written = fs::metadata(path).and_then(|file| file.modified());
    written.is_ok_and(|written| written.elapsed().is_ok_and(|elapsed| elapsed >= age))
}

/// Removes layers that no disk is made of and that are not too young.
pub(super) fn remove_unused(
    layers: &Path,
    used: &BTreeSet<LayerId>,
    age: Duration,
) -> Result<usize, PlaceError> {
    let mut removed = 0;
    for path in directories(layers)? {
        let name = path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let id = name.and_then(|name| LayerId::try_from(name).ok());
        if is_old(&path, age) && id.is_none_or(|id| !used.contains(&id)) {
            fs::remove_file(&path).map_err(PlaceError::at("remove", &path))?;
            removed += 1;
        }
    }
    Ok(removed)
}
