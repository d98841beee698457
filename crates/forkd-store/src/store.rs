//! A store: the directory that snapshots are in.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::files::{DirectoryLock, TEMPORARY};
use crate::local::Local;
use crate::manifest::{LayerEntry, Link, Manifest, SealedManifest};
use crate::snapshot::OpenError;
use crate::snapshot_files::SnapshotDirectory;
use crate::tag::Tag;

/// A directory with snapshots. Any number of processes may use it at once.
#[derive(Debug, Clone)]
pub struct Store {
    directory: PathBuf,
}

/// A snapshot in a list. One that is damaged is listed too, with what is wrong with its manifest.
#[derive(Debug)]
pub struct Listed {
    pub tag: Tag,
    pub stored: Result<Stored, OpenError>,
}

/// A snapshot of a store: what it is, and what it is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The name of its directory.
    pub tag: Tag,
    pub sealed: SealedManifest,
    pub local: Local,
}

impl Stored {
    /// How a child names this snapshot.
    pub fn link(&self) -> Link {
        Link { tag: self.tag.clone(), digest: self.sealed.digest }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.sealed.manifest
    }

    /// The layers of its disks, each with its name here.
    pub fn disk_layers(&self) -> impl Iterator<Item = (&Tag, LayerEntry)> {
        self.local.layers.iter().zip(self.manifest().disk_layers.iter().copied())
    }
}

/// The store's directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}", path.display())]
pub struct StoreError {
    pub verb: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl StoreError {
    pub(crate) fn at(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        move |source| StoreError { verb, path: path.into(), source }
    }
}

impl Store {
    /// The store in `directory`, which exists.
    pub fn new(directory: impl Into<PathBuf>) -> Store {
        Store { directory: directory.into() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the snapshot of a tag is or would be.
    pub fn path(&self, tag: &Tag) -> PathBuf {
        self.directory.join(tag)
    }

    /// All snapshots by tag. Only manifests are read.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let mut listed: Vec<Listed> = self
            .names()?
            .into_iter()
            .filter_map(|name| name.parse::<Tag>().ok())
            .filter(|tag| is_directory(&self.path(tag)))
            // Those that were removed since the directory was read are left out, here and below.
            .filter_map(|tag| {
                let opened = SnapshotDirectory::open(&self.path(&tag)).transpose()?;
                Some(Listed { stored: opened.map(|(_, stored)| stored), tag })
            })
            .filter(|listed| listed.stored.is_ok() || is_directory(&self.path(&listed.tag)))
            .collect();
        listed.sort_by(|a, b| a.tag.cmp(&b.tag));
        Ok(listed)
    }

    /// One snapshot. `None` if there is no such snapshot.
    pub fn get(&self, tag: &Tag) -> Result<Option<Stored>, OpenError> {
        Ok(SnapshotDirectory::open(&self.path(tag))?.map(|(_, stored)| stored))
    }

    /// A snapshot with this digest, under whatever name. `None` without one that can be read.
    pub fn find(&self, digest: &Digest) -> Result<Option<Stored>, StoreError> {
        let mut readable = self.list()?.into_iter().filter_map(|listed| listed.stored.ok());
        Ok(readable.find(|stored| stored.sealed.digest == *digest))
    }

    /// Removes what writers and removers that were killed have left. Those that live keep their directories locked.
    /// Returns how many directories were removed.
    pub fn sweep(&self) -> Result<usize, StoreError> {
        let mut removed = 0;
        for name in self.names()? {
            if !name.starts_with(TEMPORARY) {
                continue;
            }
            let path = self.directory.join(name);
            match DirectoryLock::attempt(&path) {
                Ok(Some(lock)) if lock.is_at(&path).map_err(StoreError::at("inspect", &path))? => {
                    fs::remove_dir_all(&path).map_err(StoreError::at("remove", &path))?;
                    removed += 1;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::at("lock", &path)(error)),
            }
        }
        Ok(removed)
    }

    /// Held while snapshots appear and disappear, so that no diff appears while its parent is removed. Not held while data
    /// is written or deleted.
    pub(crate) fn lock(&self) -> Result<DirectoryLock, StoreError> {
        DirectoryLock::wait(&self.directory).map_err(StoreError::at("lock", &self.directory))
    }

    /// The names in the directory. Names that are not text are not ours.
    fn names(&self) -> Result<Vec<String>, StoreError> {
        let failed = || StoreError::at("list", &self.directory);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed())? {
            names.extend(entry.map_err(failed())?.file_name().into_string());
        }
        Ok(names)
    }
}

/// Whether a path is a directory, or may be one: what cannot be looked at is not left out.
fn is_directory(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(found) => found.is_dir(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestStore, memory};

    #[test]
    fn the_list_has_every_snapshot_and_nothing_else() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2]));
        store.diff("a-diff", &base, &memory(&[1, 3]));
        store.full("damaged", &memory(&[1]));
        fs::write(store.path().join("damaged/manifest.json"), "{").unwrap();
        fs::create_dir(store.path().join(".tmp-leftover")).unwrap();
        fs::create_dir(store.path().join("Not a tag")).unwrap();
        fs::write(store.path().join("file"), "").unwrap();
        let list = store.list().unwrap();
        let tags: Vec<_> = list.iter().map(|listed| listed.tag.as_str()).collect();
        assert_eq!(tags, ["a-diff", "base", "damaged"]);
        let diff = list[0].stored.as_ref().unwrap();
        assert_eq!(
            (diff.manifest().parent, &diff.local.parent),
            (Some(base.digest), &Some(base.tag.clone()))
        );
        assert_eq!(list[1].stored.as_ref().unwrap().link(), base);
        assert!(matches!(list[2].stored, Err(OpenError::Manifest { .. })));
        let get = |name: &str| store.get(&name.parse().unwrap());
        assert_eq!(get("base").unwrap().unwrap().link(), base);
        assert!(matches!(get("damaged"), Err(OpenError::Manifest { .. })));
        assert!(get("none").unwrap().is_none());
        // A name is a directory's, and no part of what it has.
        fs::rename(store.path().join("base"), store.path().join("other")).unwrap();
        assert_eq!(get("other").unwrap().unwrap().link().digest, base.digest);
        fs::write(store.path().join("other/local.json"), "{}").unwrap();
        assert!(matches!(get("other"), Err(OpenError::Local { .. })));
    }

    #[test]
    fn the_sweep_spares_snapshots_and_the_living() {
        let store = TestStore::new();
        store.full("base", &memory(&[1]));
        let dead = store.path().join(".tmp-dead");
        let living = store.path().join(".tmp-living");
        for path in [&dead, &living] {
            fs::create_dir(path).unwrap();
            fs::write(path.join("memory.bin"), "half").unwrap();
        }
        let lock = DirectoryLock::attempt(&living).unwrap().unwrap();
        assert_eq!(store.sweep().unwrap(), 1);
        assert!(!dead.exists() && living.exists());
        drop(lock);
        assert_eq!(store.sweep().unwrap(), 1);
        assert!(!living.exists());
        assert_eq!(store.list().unwrap().len(), 1);
        assert_eq!(store.sweep().unwrap(), 0);
    }
}
