//! The files of a snapshot as open descriptors: what the owner of a store hands to a process that sees no paths.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::checked::{check_image, check_length};
use crate::files;
use crate::manifest::{Content, FileEntry, Manifest, SealedManifest};
use crate::snapshot::{OpenError, read_manifest};

/// The open files of one snapshot, and what to call them in messages.
#[derive(Debug)]
pub struct SnapshotFiles {
    /// Where the files are, as their owner knows it: errors say `name`/memory.bin.
    pub name: PathBuf,
    pub manifest: File,
    /// Of a chain only the head's state is read; ancestors have none here.
    pub state: Option<File>,
    pub memory: File,
    /// A diff has one.
    pub map: Option<File>,
}

impl SnapshotFiles {
    /// Checks every byte of the memory, on all cores. Nothing else is looked at but the manifest.
    pub fn check_memory(&self) -> Result<(), OpenError> {
        let FileEntry { size, digest } = read_manifest(&self.name, &self.manifest)?.manifest.memory;
        let path = self.name.join(files::MEMORY);
        check_length(&path, &self.memory, size)?;
        check_image(&path, &self.memory, size, digest)
    }
}

/// A snapshot's directory, held open: all files come from the same snapshot, even if another takes its name meanwhile.
#[derive(Debug)]
pub(crate) struct SnapshotDirectory {
    path: PathBuf,
    directory: File,
    manifest: File,
}

impl SnapshotDirectory {
    /// Opens a directory and reads its manifest. `None` if there is no such directory.
    pub fn open(path: &Path) -> Result<Option<(SnapshotDirectory, SealedManifest)>, OpenError> {
        let directory = match files::open_directory(path) {
            Ok(directory) => directory,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(OpenError::Io { path: path.into(), source }),
        };
        let manifest = open(&directory, path, files::MANIFEST)?;
        let sealed = read_manifest(path, &manifest)?;
        Ok(Some((SnapshotDirectory { path: path.into(), directory, manifest }, sealed)))
    }

    /// Opens a file that the manifest does not list.
    pub fn open_file(&self, name: &str) -> io::Result<File> {
        files::open(&self.directory, name)
    }

    /// Opens the other files that `manifest`, which was read here, lists.
    pub fn files(self, manifest: &Manifest, with_state: bool) -> Result<SnapshotFiles, OpenError> {
        let open = |name| open(&self.directory, &self.path, name);
        let state = with_state.then(|| open(files::STATE)).transpose()?;
        let map = match manifest.content {
            Content::Full => None,
            Content::Diff { .. } => Some(open(files::MAP)?),
        };
        let memory = open(files::MEMORY)?;
        Ok(SnapshotFiles { name: self.path, manifest: self.manifest, state, memory, map })
    }
}

fn open(directory: &File, path: &Path, name: &str) -> Result<File, OpenError> {
    files::open(directory, name).map_err(|source| OpenError::Io { path: path.join(name), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::testing::{TestStore, memory, tag};
    use std::fs;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_files_are_of_one_snapshot_even_if_another_takes_its_name() {
        let store = TestStore::new();
        store.full("base", &memory(&[1]));
        let (directory, sealed) = SnapshotDirectory::open(&store.path().join("base")).unwrap().unwrap();
        fs::rename(store.path().join("base"), store.path().join("aside")).unwrap();
        store.full("base", &memory(&[2, 3]));
        let files = directory.files(&sealed.manifest, true).unwrap();
        assert_eq!(files.memory.metadata().unwrap().len(), 4096);
        assert_eq!(read_manifest(&files.name, &files.manifest).unwrap(), sealed);
    }

    #[test]
    fn memory_is_checked_by_itself() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2]));
        store.diff("diff", &base, &memory(&[1, 3]));
        let open = || store.open_chain(&tag("diff")).unwrap();
        open().iter().for_each(|files| files.check_memory().unwrap());
        let damaged = store.path().join("base").join(files::MEMORY);
        let file = fs::OpenOptions::new().write(true).open(&damaged).unwrap();
        file.write_all_at(b"x", 5000).unwrap();
        let error = open()[0].check_memory().unwrap_err();
        assert!(matches!(&error, OpenError::Digest { path, .. } if *path == damaged), "{error}");
        open()[1].check_memory().unwrap();
        // Whoever says that it was checked is believed.
        Chain::open_checked(open()).unwrap();
        assert!(Chain::open(open()).is_err());
        file.set_len(4096).unwrap();
        assert!(matches!(open()[0].check_memory(), Err(OpenError::Truncated { .. })));
        assert!(Chain::open_checked(open()).is_err(), "sizes are looked at all the same");
    }

    #[test]
    fn a_snapshot_that_is_removed_meanwhile_names_what_is_missing() {
        let store = TestStore::new();
        store.full("base", &memory(&[1]));
        let path = store.path().join("base");
        let (directory, sealed) = SnapshotDirectory::open(&path).unwrap().unwrap();
        store.remove(&tag("base")).unwrap();
        let error = directory.files(&sealed.manifest, true).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot read {}", path.join(files::STATE).display()));
        assert!(SnapshotDirectory::open(&path).unwrap().is_none());
    }
}
