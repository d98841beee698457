//! Further names of snapshots.
//!
//! ```text
//! ROOT/names/
//!   latest           {"version":1,"snapshot":"base-numpy","created_unix_ms":1760000000000}
//!   .new-name        being written, or left by a daemon that was killed
//! ```
//!
//! Each name is a file. So a name is added at the same cost however many a snapshot has, and moved to another snapshot by one rename:
//! there is no moment at which it names none or two. The time at which the snapshot was made tells it from a later one with its tag.
//!
//! A name is reserved among the tags of snapshots, so no snapshot can be made with it. A file that cannot be read keeps its name reserved,
//! and is never replaced or removed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_store::Tag;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::fault;
use crate::limits::usage::blocking;
use crate::paths::PathError;
use crate::record::{Unreadable, ZygoteRecord};
use crate::registry::{Registry, Reservation};
use crate::snapshot::SnapshotHandle;

/// The most names of one snapshot, beside its tag.
const MAX_NAMES: usize = 4096;
/// No file of a name is larger.
const MAX_LENGTH: u64 = 1024;
const VERSION: u32 = 1;
const NEW: &str = ".new-";

type Tags = Registry<Tag, SnapshotHandle>;

/// What a name means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Meaning {
    version: u32,
    snapshot: Tag,
    created_unix_ms: u64,
}

impl Meaning {
    fn of(record: &ZygoteRecord) -> Meaning {
        let (snapshot, created_unix_ms) = (record.tag.clone(), record.created_unix_ms);
        Meaning { version: VERSION, snapshot, created_unix_ms }
    }

    fn is(&self, record: &ZygoteRecord) -> bool {
        *self == Meaning::of(record)
    }
}

/// All names, in memory and on disk.
#[derive(Debug)]
pub(crate) struct Names {
    directory: PathBuf,
    /// Held while files change. Those who only look do not wait for the disk.
    changing: Mutex<()>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    meanings: BTreeMap<Tag, (Meaning, Reservation<Tag, SnapshotHandle>)>,
    of_snapshot: BTreeMap<Tag, BTreeSet<Tag>>,
    /// With the name, if it is free.
    unreadable: BTreeMap<PathBuf, (Unreadable, Option<Reservation<Tag, SnapshotHandle>>)>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Known").field("names", &self.meanings.len()).finish_non_exhaustive()
    }
}

impl Known {
    fn insert(&mut self, name: &Tag, meaning: Meaning, taken: Reservation<Tag, SnapshotHandle>) {
        self.of_snapshot.entry(meaning.snapshot.clone()).or_default().insert(name.clone());
        self.meanings.insert(name.clone(), (meaning, taken));
    }

    fn remove(&mut self, name: &Tag) -> Option<(Meaning, Reservation<Tag, SnapshotHandle>)> {
        let found = self.meanings.remove(name)?;
        if let Some(names) = self.of_snapshot.get_mut(&found.0.snapshot) {
            names.remove(name);
            if names.is_empty() {
                self.of_snapshot.remove(&found.0.snapshot);
            }
        }
        Some(found)
    }
}

impl Names {
    pub fn new(directory: PathBuf) -> Names {
        Names { directory, changing: Mutex::default(), known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing is done with the lock held that could panic half-way.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, name: &Tag) -> PathBuf {
        self.directory.join(name)
    }

    /// The snapshot that a name means.
    pub fn get(&self, tags: &Tags, name: &Tag) -> Option<SnapshotHandle> {
        let meaning = self.known().meanings.get(name).map(|(meaning, _)| meaning.clone())?;
        tags.get(&meaning.snapshot).filter(|handle| meaning.is(&handle.view().record))
    }

    /// The names of a snapshot, sorted.
    pub fn of(&self, snapshot: &Tag) -> Vec<Tag> {
        self.known().of_snapshot.get(snapshot).into_iter().flatten().cloned().collect()
    }

    pub fn unreadable(&self) -> Vec<Unreadable> {
        self.known().unreadable.values().map(|(unreadable, _)| unreadable.clone()).collect()
    }

    /// Reads names that are not known yet. Those of snapshots that are gone are removed, if it is known of all snapshots whether they
    /// are there.
    pub fn load(&self, tags: &Tags, all_are_known: bool) {
        let _turn = self.turn();
        let listed = fault::read(&self.directory).and_then(|()| list(&self.directory));
        let paths = match listed {
            Ok(paths) => paths,
            Err(error) => {
                let unreadable = Unreadable::new(&self.directory, error);
                self.known().unreadable.insert(self.directory.clone(), (unreadable, None));
                return;
            }
        };
        let mut known = self.known();
        known.unreadable.clear();
        for path in paths {
            let file_name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if file_name.starts_with(NEW) {
                let _ = fs::remove_file(&path);
                continue;
            }
            let Ok(name) = file_name.parse::<Tag>() else {
                let unreadable = Unreadable::new(&path, "its name is not a tag");
                known.unreadable.insert(path, (unreadable, None));
                continue;
            };
            if known.meanings.contains_key(&name) {
                continue;
            }
            match read(&path) {
                Err(reason) => {
                    let unreadable = Unreadable::new(&path, reason);
                    known.unreadable.insert(path, (unreadable, tags.reserve(&name)));
                }
                Ok(meaning) => {
                    let snapshot = tags.get(&meaning.snapshot);
                    match snapshot.filter(|handle| meaning.is(&handle.view().record)) {
                        Some(_) => match tags.reserve(&name) {
                            Some(taken) => known.insert(&name, meaning, taken),
                            None => {
                                let unreadable = Unreadable::new(&path, "there is a snapshot with this tag");
                                known.unreadable.insert(path, (unreadable, None));
                            }
                        },
                        None if all_are_known => drop(fs::remove_file(&path)),
                        None => {}
                    }
                }
            }
        }
    }

    /// Gives a snapshot another name. `may_move` says whether a name may be taken from the snapshot that has it.
    pub fn add(
        &self,
        tags: &Tags,
        name: &Tag,
        record: &ZygoteRecord,
        may_move: impl FnOnce(&ZygoteRecord) -> bool,
    ) -> Result<(), EngineError> {
        let _turn = self.turn();
        let meaning = Meaning::of(record);
        let old = self.known().meanings.get(name).map(|(old, _)| old.clone());
        if old.as_ref() == Some(&meaning) {
            return Ok(());
        }
        if self.of(&record.tag).len() >= MAX_NAMES {
            return Err(EngineError::TooManyNames { tag: record.tag.clone(), most: MAX_NAMES });
        }
        let taken = match &old {
            None => Some(tags.reserve(name).ok_or_else(|| EngineError::NameTaken(name.clone()))?),
            Some(old) => {
                let other = tags.get(&old.snapshot).map(|handle| handle.view().record);
                // One whose snapshot is about to be gone can be taken.
                if let Some(other) = other.filter(|other| old.is(other))
                    && !may_move(&other)
                {
                    let (name, snapshot) = (name.clone(), other.tag);
                    return Err(EngineError::NameInUse { name, snapshot });
                }
                None
            }
        };
        write(&self.directory, &self.path(name), &meaning, old.is_some()).map_err(|error| {
            match error.kind() {
                // It is not known, so it cannot be read.
                io::ErrorKind::AlreadyExists => EngineError::NameTaken(name.clone()),
                _ => PathError::at("write", &self.path(name))(error).into(),
            }
        })?;
        let mut known = self.known();
        let before = known.remove(name).map(|(_, taken)| taken);
        if let Some(taken) = taken.or(before) {
            known.insert(name, meaning.clone(), taken);
        }
        drop(known);
        // The removal of a snapshot forgets its names after its tag is free.
        if tags.get(&record.tag).is_none_or(|handle| !meaning.is(&handle.view().record)) {
            self.take_away(name)?;
            return Err(EngineError::Removed);
        }
        Ok(())
    }

    /// Takes a name from a snapshot. Says whether it had it.
    pub fn remove(&self, name: &Tag, snapshot: &Tag) -> Result<bool, EngineError> {
        let _turn = self.turn();
        let has_it =
            self.known().meanings.get(name).is_some_and(|(meaning, _)| meaning.snapshot == *snapshot);
        if has_it {
            self.take_away(name)?;
        }
        Ok(has_it)
    }

    /// The file first: a name that is free is on no disk.
    fn take_away(&self, name: &Tag) -> Result<(), EngineError> {
        let path = self.path(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(PathError::at("remove", &path)(error).into());
            }
            _ => sync(&self.directory).map_err(PathError::at("sync", &self.directory))?,
        }
        self.known().remove(name);
        Ok(())
    }

    /// A snapshot is gone, and so are its names. Files that cannot be removed mean nothing from then on.
    pub fn forget(&self, record: &ZygoteRecord) {
        let _turn = self.turn();
        let names = self.of(&record.tag);
        if names.is_empty() {
            return;
        }
        for name in &names {
            let _ = fs::remove_file(self.path(name));
        }
        let _ = sync(&self.directory);
        let mut known = self.known();
        for name in &names {
            known.remove(name);
        }
    }
}

fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths =
        fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> Result<Meaning, String> {
    let mut text = Vec::new();
    let read = fault::read(path).and_then(|()| File::open(path)?.take(MAX_LENGTH + 1).read_to_end(&mut text));
    read.map_err(|error| error.to_string())?;
    if text.len() as u64 > MAX_LENGTH {
        return Err(format!("it has more than {MAX_LENGTH} bytes"));
    }
    let meaning: Meaning = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    match meaning.version {
        VERSION => Ok(meaning),
        found => Err(format!("version {found}, expected {VERSION}")),
    }
}

/// Writes the file of a name. It is on disk when this returns.
fn write(directory: &Path, path: &Path, meaning: &Meaning, replaces: bool) -> io::Result<()> {
    // The writer has the turn, so the file is not in use.
    let new = directory.join(format!("{NEW}name"));
    let mut file = File::create(&new)?;
    file.write_all(&serde_json::to_vec(meaning)?)?;
    file.sync_all()?;
    let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    renameat_with(CWD, &new, CWD, path, flags).inspect_err(|_| drop(fs::remove_file(&new)))?;
    sync(directory)
}

fn sync(directory: &Path) -> io::Result<()> {
    fault::sync(directory)?;
    File::open(directory)?.sync_all()
}

impl Engine {
    /// The names of a snapshot beside its tag, sorted.
    pub fn names_of(&self, tag: &Tag) -> Vec<Tag> {
        self.shared.names.of(tag)
    }

    /// Whether this is one of the other names of a snapshot.
    pub fn is_name(&self, name: &str) -> bool {
        name.parse().is_ok_and(|name: Tag| self.shared.names.known().meanings.contains_key(&name))
    }

    /// Gives a snapshot another name. `may_move` says whether a name may be taken from the snapshot that has it.
    pub async fn add_name(
        &self,
        snapshot: &SnapshotHandle,
        name: Tag,
        may_move: impl FnOnce(&ZygoteRecord) -> bool + Send + 'static,
    ) -> Result<(), EngineError> {
        let record = snapshot.view().record;
        self.change_names(move |shared| shared.names.add(&shared.snapshots, &name, &record, may_move)).await
    }

    /// Takes a name from a snapshot.
    pub async fn remove_name(&self, snapshot: &Tag, name: Tag) -> Result<(), EngineError> {
        let snapshot = snapshot.clone();
        self.change_names(move |shared| match shared.names.remove(&name, &snapshot)? {
            true => Ok(()),
            false => Err(EngineError::NoName { name, snapshot }),
        })
        .await
    }

    /// Continues when the caller disconnects: a file must not change without what is known of it.
    async fn change_names(
        &self,
        change: impl FnOnce(&Shared) -> Result<(), EngineError> + Send + 'static,
    ) -> Result<(), EngineError> {
        let shared = self.shared.clone();
        blocking(move || Ok(change(&shared))).await.map_err(EngineError::io("change a name"))?
    }
}
