//! A snapshot that has no name yet: its directory and its empty files are there, a process writes into them, and then it is
//! published or goes away. This half belongs to the owner of the store.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use crate::ancestry::ancestry;
use crate::chain::MAX_CHAIN;
use crate::contents::{NewFiles, Written, kind, write_file};
use crate::files;
use crate::layout::Layout;
use crate::manifest::{
    Content, DiskLayer, FileEntry, Link, Manifest, SealedManifest, check_features, check_layers,
};
use crate::store::{Store, StoreError};
use crate::tag::Tag;
use crate::temporary::TemporaryDirectory;
use crate::write::{Observer, Step, WriteError, step};

/// A snapshot that is being written. It is removed with this value, unless it is published.
#[derive(Debug)]
pub struct Draft {
    store: Store,
    tag: Tag,
    parent: Option<SealedManifest>,
    files: NewFiles,
    directory: TemporaryDirectory,
}

/// What a snapshot is, besides its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// In any order.
    pub cpu_features: Vec<String>,
    pub layout: Layout,
    /// From the base up.
    pub disk_layers: Vec<DiskLayer>,
}

impl Description {
    pub(crate) fn check(&mut self) -> Result<(), WriteError> {
        self.cpu_features.sort_unstable();
        self.cpu_features.dedup();
        check_features(&self.cpu_features).map_err(WriteError::Description)?;
        check_layers(&self.disk_layers).map_err(WriteError::Description)
    }
}

impl Store {
    /// Begins a snapshot: a diff with a parent, a full one without. Refused if the name is taken, or if the parent is not
    /// there or has too many below it.
    pub fn draft(&self, tag: &Tag, parent: Option<&Link>) -> Result<Draft, WriteError> {
        // Again at the end, with the store locked; here it saves the work.
        let parent = self.check_place(tag, parent)?;
        let directory = TemporaryDirectory::new(self)?;
        let create = |name| {
            let path = directory.path().join(name);
            files::create(&path).map_err(StoreError::at("create", &path))
        };
        let files = NewFiles {
            state: create(files::STATE)?,
            memory: create(files::MEMORY)?,
            map: parent.is_some().then(|| create(files::MAP)).transpose()?,
        };
        Ok(Draft { store: self.clone(), tag: tag.clone(), parent, files, directory })
    }

    /// Checks that the name is free and that the parent is there. Returns the parent.
    fn check_place(&self, tag: &Tag, parent: Option<&Link>) -> Result<Option<SealedManifest>, WriteError> {
        if self.path(tag).symlink_metadata().is_ok() {
            return Err(self.taken(tag));
        }
        let Some(parent) = parent else {
            return Ok(None);
        };
        let ancestors = ancestry(self, &parent.tag).map_err(WriteError::Parent)?;
        if ancestors.len() >= MAX_CHAIN {
            return Err(WriteError::TooDeep { tag: parent.tag.clone() });
        }
        let found = ancestors.into_iter().next().map(|ancestor| ancestor.sealed);
        match found {
            Some(found) if found.digest != parent.digest => Err(WriteError::WrongParent {
                tag: parent.tag.clone(),
                found: found.digest,
                expected: parent.digest,
            }),
            found => Ok(found),
        }
    }

    fn taken(&self, tag: &Tag) -> WriteError {
        WriteError::Exists { tag: tag.clone(), store: self.directory().display().to_string() }
    }
}

impl Draft {
    /// The files, for the process that writes the contents. They are the draft's own: descriptors of the same files.
    pub fn files(&self) -> io::Result<NewFiles> {
        let map = self.files.map.as_ref().map(File::try_clone).transpose()?;
        Ok(NewFiles { state: self.files.state.try_clone()?, memory: self.files.memory.try_clone()?, map })
    }

    /// The same for this process.
    pub(crate) fn new_files(&self) -> &NewFiles {
        &self.files
    }

    /// Writes the manifest and gives the snapshot its name: all of it appears at once, or none of it.
    ///
    /// `written` and `description` may come from a process that is not trusted. What they say is checked against the
    /// limits of a manifest, the parent's memory and the sizes of the files; the digests are checked by whoever loads the
    /// snapshot. That process may still have the files open and can change them, which a load finds out.
    ///
    /// If only the last sync of the store's directory fails, the snapshot is there and the error says so.
    pub fn publish(self, description: Description, written: Written) -> Result<SealedManifest, WriteError> {
        self.publish_in_steps(description, written, &mut |_| ControlFlow::Continue(()))
    }

    pub(crate) fn publish_in_steps(
        self,
        mut description: Description,
        written: Written,
        observe: &mut Observer<'_>,
    ) -> Result<SealedManifest, WriteError> {
        description.check()?;
        self.check_memory(&description.layout)?;
        self.check_sizes(&written)?;
        let manifest = self.manifest(description, written)?;
        let (sealed, bytes) = manifest.seal().map_err(WriteError::Description)?;
        let directory = self.directory.path();
        let path = directory.join(files::MANIFEST);
        let file = files::create(&path).map_err(StoreError::at("create", &path))?;
        write_file(&file, &[&bytes]).map_err(StoreError::at("write", &path))?;
        step(observe, Step::ManifestWritten)?;
        files::sync_directory(directory).map_err(StoreError::at("sync", directory))?;
        step(observe, Step::DirectorySynced)?;
        self.rename()?;
        let _too_late = observe(Step::Published);
        Ok(sealed)
    }

    /// Refuses memory that has other regions than the parent's.
    pub(crate) fn check_memory(&self, layout: &Layout) -> Result<(), WriteError> {
        match &self.parent {
            Some(parent) if parent.manifest.layout != *layout => Err(WriteError::OtherMemory),
            _ => Ok(()),
        }
    }

    fn check_sizes(&self, written: &Written) -> Result<(), WriteError> {
        let check = |name, file: &File, entry: &FileEntry| {
            let found = files::length(file).map_err(|source| WriteError::File { name, source })?;
            if found == entry.size {
                return Ok(());
            }
            Err(WriteError::Size { name, found, expected: entry.size })
        };
        check(files::STATE, &self.files.state, &written.state)?;
        check(files::MEMORY, &self.files.memory, &written.memory)?;
        match (&self.files.map, &written.map) {
            (Some(file), Some(entry)) => check(files::MAP, file, entry),
            (None, None) => Ok(()),
            (file, entry) => Err(WriteError::Kind { found: kind(file), expected: kind(entry) }),
        }
    }

    fn manifest(&self, description: Description, written: Written) -> Result<Manifest, WriteError> {
        let content = match (&self.parent, written.map) {
            (None, None) => Content::Full,
            (Some(parent), Some(map)) => Content::Diff { parent: parent.link(), map },
            (parent, map) => return Err(WriteError::Kind { found: kind(parent), expected: kind(&map) }),
        };
        Ok(Manifest {
            tag: self.tag.clone(),
            created_unix_ms: description.created_unix_ms,
            cpu_features: description.cpu_features,
            layout: description.layout,
            disk_layers: description.disk_layers,
            state: written.state,
            memory: written.memory,
            content,
        })
    }

    fn rename(self) -> Result<(), WriteError> {
        let store = self.store;
        let _lock = store.lock()?;
        store.check_place(&self.tag, self.parent.map(|parent| parent.link()).as_ref())?;
        let path = store.path(&self.tag);
        self.directory.rename(&path).map_err(StoreError::at("create", &path))?;
        files::sync_directory(store.directory()).map_err(StoreError::at("sync", store.directory()))?;
        Ok(())
    }
}
