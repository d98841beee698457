//! The files of a snapshot as open descriptors: what the owner of a store hands to a process that sees no paths.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::files;
use crate::local::{self, Local};
use crate::manifest::Manifest;
use crate::manifest_file::Parsed;
use crate::snapshot::{OpenError, read_manifest};
use crate::store::Stored;
use crate::tag::Tag;

/// The open files of one snapshot, and what to call them in messages.
#[derive(Debug)]
pub struct SnapshotFiles {
    /// Where the files are, as their owner knows it: errors say `name`/memory.bin.
    pub name: PathBuf,
    pub manifest: File,
    /// Of a chain only the head's state is read; ancestors have none here.
    pub state: Option<File>,
    pub memory: File,
    /// All have one but full snapshots of version 1.
    pub map: Option<File>,
}

/// A snapshot's directory, held open: all files come from the same snapshot, even if another takes its name meanwhile.
#[derive(Debug)]
pub(crate) struct SnapshotDirectory {
    path: PathBuf,
    directory: File,
    manifest: File,
}

impl SnapshotDirectory {
    /// Opens a directory, whose name is a tag, and reads what is known of its snapshot. `None` if there is no such directory.
    pub fn open(path: &Path) -> Result<Option<(SnapshotDirectory, Stored)>, OpenError> {
        let directory = match files::open_directory(path) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(OpenError::Io { path: path.into(), source }),
        };
        let manifest = open(&directory, path, files::MANIFEST)?;
        let Parsed { sealed, local } = read_manifest(path, &manifest)?;
        let (tag, local) = match local {
            // Its manifest has its name.
            Some((tag, _)) if !path.ends_with(tag.as_str()) => {
                return Err(OpenError::OtherTag { path: path.into(), found: tag });
            }
            Some(named) => named,
            None => (tag_of(path)?, read_local(path, &directory, &sealed.manifest)?),
        };
        Ok(Some((
            SnapshotDirectory { path: path.into(), directory, manifest },
            Stored { tag, sealed, local },
        )))
    }

    /// Opens a file that the manifest does not list.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        files::open(&self.directory, name)
    }

    /// Opens the other files that `manifest`, which was read here, lists.
    pub fn files(self, manifest: &Manifest, with_state: bool) -> Result<SnapshotFiles, OpenError> {
        let open = |name| open(&self.directory, &self.path, name);
        let state = with_state.then(|| open(files::STATE)).transpose()?;
        let map = manifest.content.map().map(|_| open(files::MAP)).transpose()?;
        let memory = open(files::MEMORY)?;
        Ok(SnapshotFiles { name: self.path, manifest: self.manifest, state, memory, map })
    }
}

fn tag_of(path: &Path) -> Result<Tag, OpenError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.parse().map_err(|source| OpenError::Tag { path: path.into(), source })
}

fn read_local(path: &Path, directory: &File, manifest: &Manifest) -> Result<Local, OpenError> {
    let file = open(directory, path, files::LOCAL)?;
    let path = path.join(files::LOCAL);
    let read = files::length(&file).and_then(|length| files::read(&file, length.min(local::MAX_LENGTH + 1)));
    let bytes = read.map_err(|source| OpenError::Io { path: path.clone(), source })?;
    Local::parse(&bytes, manifest.disk_layers.len()).map_err(|error| error.at(path))
}

fn open(directory: &File, path: &Path, name: &str) -> Result<File, OpenError> {
    files::open(directory, name).map_err(|source| OpenError::Io { path: path.join(name), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestStore, memory, tag};
    use std::fs;

    #[test]
    fn the_files_are_of_one_snapshot_even_if_another_takes_its_name() {
        let store = TestStore::new();
        store.full("base", &memory(&[1]));
        let (directory, stored) = SnapshotDirectory::open(&store.path().join("base")).unwrap().unwrap();
        fs::rename(store.path().join("base"), store.path().join("aside")).unwrap();
        store.full("base", &memory(&[2, 3]));
        let files = directory.files(stored.manifest(), true).unwrap();
        assert_eq!(files.memory.metadata().unwrap().len(), 4096);
        assert_eq!(read_manifest(&files.name, &files.manifest).unwrap().sealed, stored.sealed);
    }

    #[test]
    fn a_snapshot_of_version_1_that_was_renamed_is_refused() {
        let (store, _) = TestStore::of_version_1();
        fs::rename(store.path().join("base"), store.path().join("stolen")).unwrap();
        let error = SnapshotDirectory::open(&store.path().join("stolen")).unwrap_err();
        assert!(error.to_string().ends_with("stolen has the manifest of base"), "{error}");
    }

    #[test]
    fn a_snapshot_that_is_removed_meanwhile_names_what_is_missing() {
        let store = TestStore::new();
        store.full("base", &memory(&[1]));
        let path = store.path().join("base");
        let (directory, stored) = SnapshotDirectory::open(&path).unwrap().unwrap();
        store.remove(&tag("base")).unwrap();
        let error = directory.files(stored.manifest(), true).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read {}", path.join(files::STATE).display()));
        assert!(SnapshotDirectory::open(&path).unwrap().is_none());
    }
}
