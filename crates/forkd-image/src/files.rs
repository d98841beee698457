//! Files of the stores: whole or not there, also when a process or the host dies.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// No metadata is larger; a larger file is not ours.
const MAX_JSON: u64 = 8 << 20;

/// Directories whose names begin with this are being made or removed, or were left behind.
const TEMPORARY: &str = ".tmp-";

/// A file of a store could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("cannot {verb} {}", path.display())]
    Io { verb: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged", path.display())]
    Damaged { path: PathBuf, source: serde_json::Error },
}

impl FileError {
    pub(crate) fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> FileError {
        move |source| FileError::Io { verb, path: path.into(), source }
    }
}

/// Replaces a file's content, and brings it to the disk.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let directory = path.parent().unwrap_or(Path::new("."));
    let replace = || {
        let mut file = tempfile::NamedTempFile::with_prefix_in(TEMPORARY, directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        File::open(directory)?.sync_all()
    };
    replace().map_err(FileError::at("write", path))
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), FileError> {
    let mut text = serde_json::to_vec_pretty(value)
        .map_err(|source| FileError::Damaged { path: path.into(), source })?;
    text.push(b'\n');
    write(path, &text)
}

/// `None` if there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, FileError> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(FileError::at("read", path)(error)),
    };
    if size > MAX_JSON {
        return Err(FileError::at("read", path)(io::ErrorKind::FileTooLarge.into()));
    }
    let text = fs::read(path).map_err(FileError::at("read", path))?;
    let value = serde_json::from_slice(&text);
    value.map(Some).map_err(|source| FileError::Damaged { path: path.into(), source })
}

/// The names in a directory that are not temporary, in order; none if the directory is not there.
pub(crate) fn names(directory: &Path) -> Result<Vec<String>, FileError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(FileError::at("list", directory)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(FileError::at("list", directory))?.file_name();
        names.extend(name.to_str().filter(|name| !name.starts_with('.')).map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Whether a directory has a name. It is listed, because a 9p mount that caches remembers a name that was asked for in vain,
/// also if another process has made it since.
pub(crate) fn is_listed(directory: &Path, name: &str) -> Result<bool, FileError> {
    Ok(names(directory)?.iter().any(|listed| listed == name))
}

/// A lock on a file or directory, which ends with this value or with the process.
///
/// It is released by name, not by closing alone: a child that was forked at this moment and has not called exec yet has the
/// descriptor too.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
}

impl Lock {
    pub fn new(file: File, operation: FlockOperation) -> io::Result<Lock> {
        rustix::fs::flock(&file, operation)?;
        Ok(Lock { file })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Cannot fail on a descriptor that is open and locked; closing unlocks too.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Locks a directory, which is made if it is not there; waits while someone else has it.
pub(crate) fn lock(directory: &Path) -> Result<Lock, FileError> {
    fs::create_dir_all(directory).map_err(FileError::at("make", directory))?;
    let file = File::open(directory).map_err(FileError::at("open", directory))?;
    Lock::new(file, FlockOperation::LockExclusive).map_err(FileError::at("lock", directory))
}

/// A directory in a store that is no part of it yet, or no more. It is removed with this value. While it is in use it is
/// locked, so that no sweep takes it for a leftover.
#[derive(Debug)]
pub(crate) struct Temporary {
    directory: tempfile::TempDir,
    _lock: Lock,
}

impl Temporary {
    /// Makes one, and removes those that killed processes left.
    pub fn new(store: &Path) -> Result<Temporary, FileError> {
        // Making and locking are two steps; under the store's lock no sweep comes between them.
        let _store = lock(store)?;
        sweep(store)?;
        let directory = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(store);
        let directory = directory.map_err(FileError::at("make a directory in", store))?;
        let held = lock(directory.path())?;
        Ok(Temporary { directory, _lock: held })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Brings a directory in it to the disk and gives it its final name. `false` if that name is taken.
    pub fn publish(&self, inner: &Path, path: &Path) -> Result<bool, FileError> {
        let store = path.parent().unwrap_or(Path::new("."));
        let _store = lock(store)?;
        let publish = || {
            sync(inner)?;
            if fs::symlink_metadata(path).is_ok() {
                return Ok(false);
            }
            fs::rename(inner, path)?;
            File::open(store)?.sync_all()?;
            Ok(true)
        };
        publish().map_err(FileError::at("make", path))
    }
}

/// Brings a directory and all in it to the disk.
fn sync(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            sync(&entry?.path())?;
        }
    }
    File::open(path)?.sync_all()
}

/// Removes a directory of a store: it loses its name first, so that it is never half there.
pub(crate) fn remove_directory(path: &Path) -> Result<(), FileError> {
    let store = path.parent().unwrap_or(Path::new("."));
    let grave = Temporary::new(store)?;
    fs::rename(path, grave.path().join("removed")).map_err(FileError::at("remove", path))?;
    let place = grave.path().to_owned();
    grave.directory.close().map_err(FileError::at("remove", &place))
}

fn sweep(store: &Path) -> Result<(), FileError> {
    for entry in fs::read_dir(store).map_err(FileError::at("list", store))? {
        let entry = entry.map_err(FileError::at("list", store))?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !is_directory || !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            continue;
        }
        let path = entry.path();
        let Ok(directory) = File::open(&path) else { continue };
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => fs::remove_dir_all(&path).map_err(FileError::at("remove", &path))?,
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(FileError::at("lock", &path)(errno.into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_damage_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("value.json");
        assert_eq!(read_json::<u32>(&path).unwrap(), None);
        write_json(&path, &1).unwrap();
        write_json(&path, &2).unwrap();
        assert_eq!(read_json::<u32>(&path).unwrap(), Some(2));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        fs::write(&path, "{").unwrap();
        assert!(matches!(read_json::<u32>(&path), Err(FileError::Damaged { .. })));
        File::create(&path).unwrap().set_len(MAX_JSON + 1).unwrap();
        assert!(matches!(read_json::<u32>(&path), Err(FileError::Io { .. })));
    }

    #[test]
    fn a_temporary_directory_appears_whole_or_leaves_nothing() {
        let store = tempfile::tempdir().unwrap();
        let temporary = Temporary::new(store.path()).unwrap();
        let inner = temporary.path().join("thing");
        fs::create_dir(&inner).unwrap();
        fs::write(inner.join("file"), "x").unwrap();
        let name = store.path().join("name");
        assert_eq!(names(store.path()).unwrap(), [""; 0]);
        assert!(temporary.publish(&inner, &name).unwrap());
        drop(temporary);
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 1);

        // Taken names stay what they are.
        let second = Temporary::new(store.path()).unwrap();
        fs::create_dir(second.path().join("thing")).unwrap();
        assert!(!second.publish(&second.path().join("thing"), &name).unwrap());
        assert!(name.join("file").exists());
        drop(second);
        remove_directory(&name).unwrap();
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 0);
    }

    #[test]
    fn leftovers_go_and_what_is_in_use_stays() {
        let store = tempfile::tempdir().unwrap();
        let used = Temporary::new(store.path()).unwrap();
        fs::create_dir(store.path().join(".tmp-left")).unwrap();
        let _second = Temporary::new(store.path()).unwrap();
        assert!(used.path().exists() && !store.path().join(".tmp-left").exists());
    }

    #[test]
    fn a_lock_ends_even_if_a_forked_child_has_its_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let held = lock(directory.path()).unwrap();
        let _of_a_child = held.file.try_clone().unwrap();
        let again =
            || Lock::new(File::open(directory.path()).unwrap(), FlockOperation::NonBlockingLockExclusive);
        assert_eq!(again().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        assert!(again().is_ok());
    }
}
