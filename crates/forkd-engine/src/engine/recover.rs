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

use super::sandbox::{self, SandboxState};
use super::snapshot::{self, SnapshotStatus, Zygote};
use super::{Engine, EngineError, Shared};
use crate::ids::{LayerId, SandboxId};
use crate::lasting::{Found, Lasting};
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
}

/// What is in a directory.
enum Seen {
    Alive(Found),
    Dead,
    /// A process that is there and says nothing: stopped, or stuck.
    Mute,
}

pub(super) async fn recover(shared: &Arc<Shared>) -> Result<Recovered, EngineError> {
    let mut recovered = Recovered { removed: shared.store.sweep()?, ..Recovered::default() };
    let mut used = BTreeSet::new();
    let stored = stored(shared)?;
    for directory in directories(&shared.places.zygotes())? {
        let record = record::read::<ZygoteRecord>(&directory);
        match (record.filter(|record| record.promised), look(&directory).await) {
            // One that a daemon has started and not told what to load is none.
            (Some(record), Seen::Alive(found)) if state_of(&found).await == Some(StateName::Zygote) => {
                used.extend(record.layers.iter().cloned());
                recovered.zygotes.push(record.tag.clone());
                adopt_zygote(shared, record, found, &stored);
            }
            (record, Seen::Mute) => {
                used.extend(record.into_iter().flat_map(|record| record.layers));
                recovered.mute.push(directory);
            }
            (_, seen) => recovered.removed += remove(&directory, seen)?,
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
    let records =
        sandboxes.into_iter().map(|directory| (record::read::<SandboxRecord>(&directory), directory));
    let records: Vec<_> = records.collect();
    let promised = records.iter().filter_map(|(record, _)| record.as_ref().filter(|record| record.promised));
    let groups: BTreeSet<_> = promised.filter_map(|record| record.group.clone()).collect();
    for (record, directory) in records {
        let promised = |record: &SandboxRecord| {
            record.promised || record.group.as_ref().is_some_and(|group| groups.contains(group))
        };
        match (record.filter(promised), look(&directory).await) {
            (Some(record), Seen::Alive(found)) => match adopt_sandbox(shared, record, found).await {
                Ok(record) => {
                    used.extend(record.disk.iter().flat_map(|disk| disk.all()).cloned());
                    recovered.sandboxes.push(record.id);
                }
                Err(found) => recovered.removed += remove(&directory, Seen::Alive(found))?,
            },
            (record, Seen::Mute) => {
                let disk = record.and_then(|record| record.disk);
                used.extend(disk.iter().flat_map(|disk| disk.all()).cloned());
                recovered.mute.push(directory);
            }
            (_, seen) => recovered.removed += remove(&directory, seen)?,
        }
    }
    recovered.removed += remove_unused(&shared.places.layers(), &used, Duration::ZERO)?;
    Ok(recovered)
}

impl Engine {
    /// Removes what nobody has any more: directories of processes that have ended, and layers of disks. Returns how many.
    pub async fn sweep(&self) -> Result<usize, EngineError> {
        let directories = self.shared.sweep_directories().await?;
        let shared = Arc::clone(&self.shared);
        let layers = tokio::task::spawn_blocking(move || shared.sweep_layers()).await;
        Ok(directories + layers.map_err(|error| EngineError::io("sweep")(std::io::Error::other(error)))??)
    }
}

impl Shared {
    /// A directory is made after its name is taken, and removed before that is given back. So one without a name could not be
    /// removed when it should have been. Those of processes that live are left to the next daemon.
    async fn sweep_directories(&self) -> Result<usize, EngineError> {
        let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let is_sandbox = |name: &str| name.parse().is_ok_and(|id| self.sandboxes.has(&id));
        let is_snapshot = |name: &str| name.parse().is_ok_and(|tag| self.snapshots.has(&tag));
        let mut nobody_s = directories(&self.places.sandboxes())?;
        nobody_s.retain(|path| !name(path).is_some_and(|name| is_sandbox(&name)));
        let mut zygotes = directories(&self.places.zygotes())?;
        zygotes.retain(|path| !name(path).is_some_and(|name| is_snapshot(&name)));
        nobody_s.append(&mut zygotes);
        let mut removed = 0;
        for directory in nobody_s {
            if is_old(&directory, MAKING) && matches!(look(&directory).await, Seen::Dead) {
                removed += remove(&directory, Seen::Dead)?;
            }
        }
        Ok(removed)
    }

    fn sweep_layers(&self) -> Result<usize, EngineError> {
        let shared = self;
        let mut used: BTreeSet<LayerId> =
            stored(shared)?.into_iter().flat_map(|record| record.layers).collect();
        // What is written down, not what is known here: a sandbox that is being made is written down first.
        for directory in directories(&shared.places.zygotes())? {
            used.extend(
                record::read::<ZygoteRecord>(&directory).into_iter().flat_map(|record| record.layers),
            );
        }
        for directory in directories(&shared.places.sandboxes())? {
            let disk = record::read::<SandboxRecord>(&directory).and_then(|record| record.disk);
            used.extend(disk.iter().flat_map(|disk| disk.all()).cloned());
        }
        Ok(remove_unused(&shared.places.layers(), &used, MAKING)?)
    }
}

/// No process that can be talked to takes longer to say who it is.
const ANSWER: Duration = Duration::from_secs(10);
/// A file that is younger may be of a VM that is not written down yet.
const MAKING: Duration = Duration::from_secs(60);

/// What is on disk, and was written by an engine.
fn stored(shared: &Shared) -> Result<Vec<ZygoteRecord>, EngineError> {
    let sealed = shared.store.list()?.into_iter().filter_map(|listed| listed.manifest.ok());
    let about = sealed.map(|sealed| serde_json::Value::Object(sealed.manifest.about));
    Ok(about.filter_map(|about| serde_json::from_value(about).ok()).collect())
}

fn adopt_zygote(shared: &Arc<Shared>, record: ZygoteRecord, found: Found, stored: &[ZygoteRecord]) {
    let on_disk = stored.iter().any(|stored| stored.tag == record.tag);
    let status = if on_disk { SnapshotStatus::Ready } else { SnapshotStatus::Live };
    let (process, events) = found.process;
    if let Some(name) = shared.snapshots.reserve(&record.tag) {
        name.fill(snapshot::own(shared, Arc::new(Zygote { process, record }), events, status));
    }
}

/// Takes a sandbox over. One whose disk cannot be what its process says is given back, to be ended.
async fn adopt_sandbox(
    shared: &Arc<Shared>,
    mut record: SandboxRecord,
    found: Found,
) -> Result<SandboxRecord, Found> {
    if let Some(disk) = record.disk.take() {
        let inode = |id: &LayerId| fs::metadata(shared.places.layer(id)).ok().map(|file| file.ino());
        match disk.resolve(&found.disk, inode) {
            Some(disk) => record.disk = Some(disk),
            None => return Err(found),
        }
    }
    let mut state = match state_of(&found).await {
        Some(StateName::Running) => SandboxState::Running,
        Some(StateName::Paused) => SandboxState::Paused,
        _ => return Err(found),
    };
    let Some(name) = shared.sandboxes.reserve(&record.id) else { return Err(found) };
    record.promised = true;
    let rolled_back = record.rolling_back.take().filter(|begun| begun.from_pid != found.process.0.pid);
    if let Some(RollingBack { tag, generation, .. }) = &rolled_back {
        record.back_to(tag, *generation);
        state = SandboxState::Starting;
    }
    // Written again: what was in doubt is not any more.
    let _ = record::write(&shared.places.sandbox(&record.id), &record);
    let handle = sandbox::own(shared, record.clone(), found.process, state);
    if rolled_back.is_some() {
        // It may take the guest a while to become somebody, and others are to be found meanwhile.
        let handle = handle.clone();
        tokio::spawn(async move { handle.identify().await });
    }
    name.fill(handle);
    Ok(record)
}

async fn state_of(found: &Found) -> Option<StateName> {
    match tokio::time::timeout(ANSWER, found.process.0.control.call(Command::Stats, &[])).await {
        Ok(Ok((Reply::Stats(stats), _))) => Some(stats.state),
        _ => None,
    }
}

fn directories(parent: &Path) -> Result<Vec<PathBuf>, PlaceError> {
    let entries = fs::read_dir(parent).map_err(PlaceError::at("list", parent))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(PlaceError::at("list", parent)));
    let mut paths = paths.collect::<Result<Vec<_>, _>>()?;
    paths.sort();
    Ok(paths)
}

async fn look(directory: &Path) -> Seen {
    match tokio::time::timeout(ANSWER, Lasting::find(directory)).await {
        Ok(Ok(Some(found))) => Seen::Alive(found),
        Ok(Ok(None)) => Seen::Dead,
        Ok(Err(_)) | Err(_) => Seen::Mute,
    }
}

/// Ends what is in a directory, and removes it. Returns how many directories that makes.
fn remove(directory: &Path, seen: Seen) -> Result<usize, PlaceError> {
    if let Seen::Alive(found) = seen {
        found.process.0.kill();
    }
    fs::remove_dir_all(directory).map_err(PlaceError::at("remove", directory))?;
    Ok(1)
}

fn is_old(path: &Path, age: Duration) -> bool {
    let written = fs::metadata(path).and_then(|file| file.modified());
    written.is_ok_and(|written| written.elapsed().is_ok_and(|elapsed| elapsed >= age))
}

/// Removes layers that no disk is made of and that are not too young.
fn remove_unused(layers: &Path, used: &BTreeSet<LayerId>, age: Duration) -> Result<usize, PlaceError> {
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
