//! A snapshot that has no name yet: its directory and its empty files are there, a process writes into them, and then it is
//! sealed and published (`seal.rs`), or goes away. This half belongs to the owner of the store.

use std::io;
use std::path::PathBuf;

use crate::ancestry::ancestry;
use crate::chain::MAX_CHAIN;
use crate::contents::{NewFiles, write_file};
use crate::digest::Digest;
use crate::files;
use crate::layout::Layout;
use crate::manifest::{About, Cpu, LayerEntry, Link, check_cpu, check_layer_count};
use crate::store::{Store, StoreError, Stored};
use crate::tag::Tag;
use crate::temporary::TemporaryDirectory;
use crate::write::WriteError;

/// A snapshot that is being written. It is removed with this value, unless it is published.
#[derive(Debug)]
pub struct Draft {
    store: Store,
    tag: Tag,
    parent: Option<(Link, Layout)>,
    /// The digest of the snapshot that it takes the place of.
    instead_of: Option<Digest>,
    /// Until it is settled.
    files: Option<NewFiles>,
    directory: TemporaryDirectory,
}

/// What a snapshot is, besides its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The features in any order.
    pub cpu: Cpu,
    pub layout: Layout,
    /// Anything else to be known again on every host.
    pub about: About,
    /// Anything else to be known again here.
    pub local: About,
    /// Those of each disk from the base up, one disk after another.
    pub disk_layers: Vec<DiskLayer>,
}

/// A layer of one of the VM's disks. The store keeps the reference; the layer is somewhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskLayer {
    /// Has the syntax of a tag.
    pub id: Tag,
    pub entry: LayerEntry,
}

impl Description {
    pub(crate) fn check(&mut self) -> Result<(), WriteError> {
        self.cpu.features.sort_unstable();
        self.cpu.features.dedup();
        check_cpu(&self.cpu).map_err(WriteError::Description)?;
        check_layer_count(self.disk_layers.len()).map_err(WriteError::Description)
    }
}

impl Store {
    /// Begins a snapshot: a diff with a parent, a full one without. Refused if the name is taken, or if the parent is not
    /// there or has too many below it.
    pub fn draft(&self, tag: &Tag, parent: Option<&Link>) -> Result<Draft, WriteError> {
        // Again at the end, with the store locked; here it saves the work.
        let parent = self.check_place(tag, parent)?;
        let parent = parent.map(|parent| (parent.link(), parent.sealed.manifest.layout));
        self.begin(tag, parent, None)
    }

    /// Begins a full snapshot that takes the place of another one. Refused if a diff depends on that.
    pub(crate) fn draft_instead(&self, of: &Stored) -> Result<Draft, WriteError> {
        self.check_replaced(&of.tag, of.sealed.digest)?;
        self.begin(&of.tag, None, Some(of.sealed.digest))
    }

    fn begin(
        &self,
        tag: &Tag,
        parent: Option<(Link, Layout)>,
        instead_of: Option<Digest>,
    ) -> Result<Draft, WriteError> {
        let directory = TemporaryDirectory::new(self)?;
        let create = |name| {
            let path = directory.path().join(name);
            files::create(&path).map_err(StoreError::at("create", &path))
        };
        let files = NewFiles {
            state: create(files::STATE)?,
            memory: create(files::MEMORY)?,
            runs: create(files::RUNS)?,
        };
        let (store, tag, files) = (self.clone(), tag.clone(), Some(files));
        Ok(Draft { store, tag, parent, instead_of, files, directory })
    }

    /// Checks that a snapshot is still the one that is to be replaced, and that no diff depends on it.
    fn check_replaced(&self, tag: &Tag, digest: Digest) -> Result<(), WriteError> {
        let found = self.get(tag).map_err(|error| WriteError::Parent(error.into()))?;
        match found.map(|found| found.sealed.digest) {
            Some(found) if found == digest => Ok(self.check_dependents(tag).map_err(Box::new)?),
            _ => Err(WriteError::Replaced { tag: tag.clone() }),
        }
    }

    /// Checks that the name is free and that the parent is there. Returns the parent.
    fn check_place(&self, tag: &Tag, parent: Option<&Link>) -> Result<Option<Stored>, WriteError> {
        if self.path(tag).symlink_metadata().is_ok() {
            let store = self.directory().display().to_string();
            return Err(WriteError::Exists { tag: tag.clone(), store });
        }
        let Some(parent) = parent else {
            return Ok(None);
        };
        let ancestors = ancestry(self, &parent.tag).map_err(WriteError::Parent)?;
        if ancestors.len() >= MAX_CHAIN {
            return Err(WriteError::TooDeep { tag: parent.tag.clone() });
        }
        let found = ancestors.into_iter().next().map(|ancestor| ancestor.stored);
        match found {
            Some(found) if found.sealed.digest != parent.digest => Err(WriteError::WrongParent {
                tag: parent.tag.clone(),
                found: found.sealed.digest,
                expected: parent.digest,
            }),
            found => Ok(found),
        }
    }
}

impl Draft {
    /// The files, for the process that writes the contents. They are the draft's own: descriptors of the same files.
    pub fn files(&self) -> io::Result<NewFiles> {
        let files = self.new_files()?;
        Ok(NewFiles {
            state: files.state.try_clone()?,
            memory: files.memory.try_clone()?,
            runs: files.runs.try_clone()?,
        })
    }

    /// The same for this process.
    pub(crate) fn new_files(&self) -> io::Result<&NewFiles> {
        self.files.as_ref().ok_or_else(|| io::Error::other("the draft is settled"))
    }

    pub(crate) fn close(&mut self) {
        self.files = None;
    }

    pub(crate) fn tag(&self) -> &Tag {
        &self.tag
    }

    pub(crate) fn parent(&self) -> Option<&Link> {
        self.parent.as_ref().map(|(link, _)| link)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Refuses memory that has other regions than the parent's.
    pub(crate) fn check_memory(&self, layout: &Layout) -> Result<(), WriteError> {
        match &self.parent {
            Some((_, parent)) if parent != layout => Err(WriteError::OtherMemory),
            _ => Ok(()),
        }
    }

    /// Writes a file of the owner's own.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let path = self.path(name);
        let file = files::create(&path).map_err(StoreError::at("create", &path))?;
        write_file(&file, &[bytes]).map_err(StoreError::at("write", &path))
    }

    /// Makes the names of its files durable.
    pub(crate) fn sync(&self) -> Result<(), StoreError> {
        let directory = self.directory.path();
        files::sync_directory(directory).map_err(StoreError::at("sync", directory))
    }

    /// Gives it its name.
    pub(crate) fn rename(self) -> Result<(), WriteError> {
        let store = self.store;
        let _lock = store.lock()?;
        let path = store.path(&self.tag);
        if let Some(digest) = self.instead_of {
            store.check_replaced(&self.tag, digest)?;
            self.directory.exchange(&path).map_err(StoreError::at("replace", &path))?;
            return Ok(());
        }
        store.check_place(&self.tag, self.parent.map(|(link, _)| link).as_ref())?;
        self.directory.rename(&path).map_err(StoreError::at("create", &path))?;
        files::sync_directory(store.directory()).map_err(StoreError::at("sync", store.directory()))?;
        Ok(())
    }
}
