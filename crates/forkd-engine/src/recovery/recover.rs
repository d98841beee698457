//! Recover: what a daemon that starts finds of the one before it.
//!
//! The order matters. Zygotes first: one that was asked for forks by a daemon that died answers a new client only when it
//! has done all of them, so nothing appears later in a directory that was found empty. Then sandboxes, then the remaining files.
//!
//! What cannot be read is left as it is, with its process, and is told. Nothing is removed then that it might need.

use std::collections::BTreeSet;
use std::fs;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forkd_proto::causes::with_causes;
use forkd_proto::control::{Command, Reply, StateName};
use forkd_store::Tag;

use crate::engine::Shared;
use crate::error::EngineError;
use crate::ids::{LayerId, SandboxId};
use crate::network::NetworksFound;
use crate::paths::{PathError, Paths};
use crate::process::control::CallError;
use crate::process::{Found, ProcessError, VmProcess};
use crate::record::{self, RollingBack, SandboxRecord, Unreadable, ZygoteRecord};
use crate::recovery::written::list;
use crate::sandbox::{self, SandboxState, promise};
use crate::snapshot::{self, SnapshotStatus, Zygote};

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
    /// Records, manifests and directories that cannot be read. They are left as they are, and nothing is removed.
    pub unreadable: Vec<Unreadable>,
    /// Unused directories, files and processes.
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
pub(crate) enum Settled<R> {
    Adopted(R),
    /// Left as it is, with what its record says.
    Mute(Option<R>),
    /// Left as it is: it is unknown what its process has.
    Unreadable(Unreadable),
    Removed,
}

pub(crate) async fn recover(shared: &Arc<Shared>) -> Result<Recovered, EngineError> {
    let mut recovered = Recovered::default();
    let mut unreadable = Vec::new();
    match shared.store.sweep() {
        Ok(removed) => recovered.removed = removed,
        Err(error) => unreadable.push(Unreadable::new(shared.store.directory(), with_causes(&error))),
    }
    recovered.removed += shared.remove_unfinished_arrivals();
    let stored: Arc<[_]> = shared.stored(&mut unreadable).into();
    let zygotes = list(&shared.paths.zygotes(), &mut unreadable);
    let settled = settle_all(zygotes, |directory| {
        let (shared, stored) = (Arc::clone(shared), Arc::clone(&stored));
        async move { settle_zygote(&shared, &directory, &stored).await }
    });
    for (directory, settled) in settled.await {
        match settled {
            Settled::Adopted(record) => recovered.zygotes.push(record.tag),
            Settled::Mute(record) => {
                record.iter().filter_map(|record| record.user).for_each(|user| shared.users.keep(user));
                recovered.mute.push(directory);
            }
            Settled::Unreadable(error) => unreadable.push(error),
            Settled::Removed => recovered.removed += 1,
        }
    }
    for record in stored.iter().cloned() {
        recovered.stored.push(record.tag.clone());
        if let Some(name) = shared.snapshots.reserve(&record.tag) {
            name.fill(snapshot::own_stored(shared, record));
        }
    }
    shared.names.load(&shared.snapshots, unreadable.is_empty() && recovered.mute.is_empty());
    let sandboxes = list(&shared.paths.sandboxes(), &mut unreadable);
    let groups = promised_groups(&shared.paths, &sandboxes);
    promise_groups(&sandboxes, &groups)?;
    if let Some(groups) = &groups {
        promise::forget(&shared.paths, groups);
    }
    let groups = Arc::new(groups);
    let settled = settle_all(sandboxes, |directory| {
        let (shared, groups) = (Arc::clone(shared), Arc::clone(&groups));
        async move { settle_sandbox(&shared, &directory, &groups).await }
    });
    for (directory, settled) in settled.await {
        match settled {
            Settled::Adopted(record) => recovered.sandboxes.push(record.id),
            Settled::Mute(record) => {
                record.iter().filter_map(|record| record.user).for_each(|user| shared.users.keep(user));
                recovered.mute.push(directory);
            }
            Settled::Unreadable(error) => unreadable.push(error),
            Settled::Removed => recovered.removed += 1,
        }
    }
    if !unreadable.is_empty() {
        shared.users.keep_running();
    }
    let layers = shared.sweep_layers(Duration::ZERO);
    unreadable.extend(layers.unreadable);
    recovered.removed += layers.removed + shared.sweep_cgroups();
    recovered.unreadable = shared.note_unreadable(unreadable);
    Ok(recovered)
}

/// Settles directories, all at once: a process that does not answer is waited for.
pub(crate) async fn settle_all<R: Send + 'static, F: Future<Output = Settled<R>> + Send + 'static>(
    directories: Vec<PathBuf>,
    settle: impl Fn(PathBuf) -> F,
) -> Vec<(PathBuf, Settled<R>)> {
    let spawn = |directory: PathBuf| (directory.clone(), tokio::spawn(settle(directory)));
    let mut settled = Vec::new();
    for (directory, task) in directories.into_iter().map(spawn).collect::<Vec<_>>() {
        let result = task.await.unwrap_or_else(|error| {
            Settled::Unreadable(Unreadable::new(&directory, format!("cannot check it: {error}")))
        });
        settled.push((directory, result));
    }
    settled
}

/// Groups of sandboxes that were promised, by a file of their own, or, by daemons that had none, in the record of the first: the
/// promise of one is that of all. `None` if a record cannot be read, in which any of them may be.
pub(crate) type Groups = Option<BTreeSet<SandboxId>>;

pub(crate) fn promised_groups(paths: &Paths, sandboxes: &[PathBuf]) -> Groups {
    let mut groups = promise::promised(paths).ok()?;
    for directory in sandboxes {
        let record = record::read::<SandboxRecord>(directory).ok()?;
        groups.extend(record.filter(|record| record.promised).and_then(|record| record.group));
    }
    Some(groups)
}

/// Writes down for each sandbox that it is promised with its group. What says so of the group may go at any time from now on.
fn promise_groups(sandboxes: &[PathBuf], groups: &Groups) -> Result<(), PathError> {
    for directory in sandboxes {
        if let Ok(Some(record)) = record::read::<SandboxRecord>(directory)
            && !record.promised
            && is_promised(&record, groups) == Some(true)
        {
            record::write(directory, &SandboxRecord { promised: true, ..record })?;
        }
    }
    Ok(())
}

/// Whether a client was told of a sandbox. `None` if that is not known.
fn is_promised(record: &SandboxRecord, groups: &Groups) -> Option<bool> {
    match (&record.group, groups) {
        _ if record.promised => Some(true),
        (None, _) => Some(false),
        (Some(group), Some(groups)) => Some(groups.contains(group)),
        (Some(_), None) => None,
    }
}

/// Adopts what is in a zygote's directory, or ends and removes it.
pub(crate) async fn settle_zygote(
    shared: &Arc<Shared>,
    directory: &Path,
    stored: &[ZygoteRecord],
) -> Settled<ZygoteRecord> {
    let record = match record::read::<ZygoteRecord>(directory) {
        Ok(record) => record,
        Err(error) => return Settled::Unreadable(error),
    };
    match (record, look(directory).await) {
        // A process that was started and not told what to load does not count.
        (Some(record), Seen::Alive(found, StateName::Zygote)) if record.promised => {
            adopt_zygote(shared, record.clone(), found, stored);
            Settled::Adopted(record)
        }
        (record, Seen::Mute) => Settled::Mute(record),
        (_, seen) => remove(directory, seen),
    }
}

/// The same for a sandbox's.
pub(crate) async fn settle_sandbox(
    shared: &Arc<Shared>,
    directory: &Path,
    groups: &Groups,
) -> Settled<SandboxRecord> {
    let record = match record::read::<SandboxRecord>(directory) {
        Ok(record) => record,
        Err(error) => return Settled::Unreadable(error),
    };
    let Some(is_promised) = record.as_ref().map_or(Some(false), |record| is_promised(record, groups)) else {
        let reason = "cannot read the record of the request that made it";
        return Settled::Unreadable(Unreadable::new(directory, reason));
    };
    if let Some(error) = record.as_ref().and_then(|record| unreadable_layer(shared, record)) {
        return Settled::Unreadable(error);
    }
    match (record, look(directory).await) {
        (Some(record), Seen::Alive(found, state)) if is_promised => {
            match adopt_sandbox(shared, SandboxRecord { promised: true, ..record }, found, state) {
                Ok(record) => Settled::Adopted(record),
                Err(found) => remove(directory, Seen::Alive(found, state)),
            }
        }
        (record, Seen::Mute) => Settled::Mute(record),
        (_, seen) => remove(directory, seen),
    }
}

/// No process that can be talked to takes longer to say who it is.
const ANSWER: Duration = Duration::from_secs(6);

fn adopt_zygote(shared: &Arc<Shared>, mut record: ZygoteRecord, found: Found, stored: &[ZygoteRecord]) {
    let on_disk = stored.iter().find(|stored| stored.tag == record.tag);
    // It may have been compacted since its process was made.
    if let Some(stored) = on_disk {
        record.parent.clone_from(&stored.parent);
    }
    let status = if on_disk.is_some() { SnapshotStatus::Ready } else { SnapshotStatus::Live };
    let (mut process, events) = found.process;
    shared.find_cgroup_of_zygote(&mut record, process.pid);
    process.user = record.user.map(|user| shared.users.found(user));
    if let Some(name) = shared.snapshots.reserve(&record.tag) {
        name.fill(snapshot::own(shared, Arc::new(Zygote { process, record }), events, status));
    }
}

/// A file of a disk of which not even its inode can be read: whether the sandbox is what its process says cannot be decided.
fn unreadable_layer(shared: &Shared, record: &SandboxRecord) -> Option<Unreadable> {
    let paths = record.disks.iter().flat_map(|disk| disk.all()).map(|id| shared.paths.layer(id));
    paths.into_iter().find_map(|path| match fs::metadata(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Some(Unreadable::new(path, error)),
        _ => None,
    })
}

/// Takes a sandbox over. One whose disks cannot be what its process says is given back, to be ended.
fn adopt_sandbox(
    shared: &Arc<Shared>,
    mut record: SandboxRecord,
    found: Found,
    state: StateName,
) -> Result<SandboxRecord, Found> {
    record.take_over_wake();
    let inode = |id: &LayerId| fs::metadata(shared.paths.layer(id)).ok().map(|file| file.ino());
    let used = found.disks.iter().map(Vec::as_slice).chain(iter::repeat(&[][..]));
    let resolved = record.disks.into_iter().zip(used).map(|(disk, used)| disk.resolve(used, inode));
    match resolved.collect() {
        Some(disks) => record.disks = disks,
        None => return Err(found),
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
    if let Some(changing) = record.changing.take()
        && changing.pauses != (state == SandboxState::Paused)
    {
        record.expires_unix_ms = changing.expires_before;
    }
    shared.find_cgroup_of_sandbox(&mut record, found.process.0.pid);
    // Written again: what was in doubt is not any more.
    let _ = record::write(&shared.paths.sandbox(&record.id), &record);
    let mut process = found.process;
    process.0.user = record.user.map(|user| shared.users.found(user));
    let handle = sandbox::own(shared, record.clone(), process, state);
    if rolled_back.is_some() {
        // It may take the guest a while to take its identity, and others are to be found meanwhile.
        let handle = handle.clone();
        tokio::spawn(async move { handle.identify().await });
    }
    name.fill(handle);
    Ok(record)
}

async fn look(directory: &Path) -> Seen {
    let asked = async {
        let Some(found) = VmProcess::find(directory).await? else { return Ok(None) };
        match found.process.0.control.call(Command::Stats, &[]).await {
            Ok((Reply::Stats(stats), _)) => Ok(Some((found, stats.state))),
            Ok((reply, _)) => Err(ProcessError::Answer(reply)),
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
fn remove<R>(directory: &Path, seen: Seen) -> Settled<R> {
    if let Seen::Alive(found, _) = seen {
        found.process.0.kill();
    }
    match fs::remove_dir_all(directory) {
        Ok(()) => Settled::Removed,
        // The next sweep tries again.
        Err(error) => Settled::Unreadable(Unreadable::new(directory, format!("cannot remove it: {error}"))),
    }
}

pub(crate) fn is_old(path: &Path, age: Duration) -> bool {
    let written = fs::metadata(path).and_then(|file| file.modified());
    written.is_ok_and(|written| written.elapsed().is_ok_and(|elapsed| elapsed >= age))
}
