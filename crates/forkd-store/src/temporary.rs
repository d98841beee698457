//! A temporary directory in a store: what is in it is no snapshot yet, or no snapshot any more.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::files::{DirectoryLock, TEMPORARY, sync_directory};
use crate::store::{Store, StoreError};

/// Two sweeps in a row that both meet the same new directory before it is locked are unlikely; eight are a fault.
const ATTEMPTS: usize = 8;

/// A directory that is removed with this value. It is locked, so that no sweep takes it for a leftover.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory {
    directory: tempfile::TempDir,
    _lock: DirectoryLock,
}

impl TemporaryDirectory {
    pub fn new(store: &Store) -> Result<TemporaryDirectory, StoreError> {
        let failed = || StoreError::at("create a temporary directory in", store.directory());
        for _ in 0..ATTEMPTS {
            let directory = tempfile::Builder::new()
                .prefix(TEMPORARY)
                .permissions(fs::Permissions::from_mode(0o700))
                .tempdir_in(store.directory())
                .map_err(failed())?;
            // Between the two a sweep can lock the directory, or have removed it.
            let lock = match DirectoryLock::attempt(directory.path()) {
                Ok(Some(lock)) => lock,
                Ok(None) => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed()(error)),
            };
            if lock.is_at(directory.path()).map_err(failed())? {
                return Ok(TemporaryDirectory { directory, _lock: lock });
            }
        }
        Err(failed()(io::ErrorKind::ResourceBusy.into()))
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Gives the directory its final name, if that is free. The caller holds the store's lock.
    pub fn rename(self, path: &Path) -> io::Result<()> {
        // A rename would replace an empty directory.
        match fs::symlink_metadata(path) {
            Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        fs::rename(self.directory.path(), path)?;
        let _renamed = self.directory.keep();
        Ok(())
    }

    /// Puts the directory in the place of another one, and removes that. The caller holds the store's lock.
    pub fn exchange(self, path: &Path) -> io::Result<()> {
        let own = self.directory.path();
        renameat_with(CWD, own, CWD, path, RenameFlags::EXCHANGE)?;
        // Before the other one is removed: a loss of power must not leave neither.
        sync_directory(path.parent().unwrap_or(path))?;
        // The other one has this one's name now. What cannot be removed is left for the sweep, which does not find it locked.
        let _ = self.directory.close();
        Ok(())
    }

    /// Removes the directory, and says so if that fails.
    pub fn remove(self) -> Result<(), StoreError> {
        let path = self.directory.path().to_path_buf();
        self.directory.close().map_err(StoreError::at("remove", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_with_its_value_and_is_spared_by_the_sweep() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let temporary = TemporaryDirectory::new(&store).unwrap();
        fs::write(temporary.path().join("memory.bin"), "half").unwrap();
        assert_eq!(fs::metadata(temporary.path()).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(store.sweep().unwrap(), 0);
        drop(temporary);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_name_that_is_taken_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        let taken = directory.path().join("taken");
        fs::create_dir(&taken).unwrap();
        let error = TemporaryDirectory::new(&store).unwrap().rename(&taken).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        TemporaryDirectory::new(&store).unwrap().rename(&directory.path().join("free")).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
