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
    About, Content, DiskLayer, FileEntry, Link, Manifest, SealedManifest, check_features, check_layers,
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
    /// Anything else to be known again.
    pub about: About,
    /// Those of each disk from the base up, one disk after another.
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
    /// snapshot. A process that still has the files open can change them: a load finds what was changed before it, not what
    /// is changed after it. So the files should be closed there before the snapshot is used.
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
        let manifest = self.manifest(description, written)?;
        self.check_sizes(&manifest)?;
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

    fn check_sizes(&self, manifest: &Manifest) -> Result<(), WriteError> {
        let check = |name, file: &File, entry: &FileEntry| {
            let found = files::length(file).map_err(|source| WriteError::File { name, source })?;
            if found == entry.size {
                return Ok(());
            }
            Err(WriteError::Size { name, found, expected: entry.size })
        };
        check(files::STATE, &self.files.state, &manifest.state)?;
        check(files::MEMORY, &self.files.memory, &manifest.memory)?;
        match (&self.files.map, &manifest.content) {
            (Some(file), Content::Diff { map, .. }) => check(files::MAP, file, map),
            _ => Ok(()),
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
            about: description.about,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::{Chain, ChainError};
    use crate::contents::{NewContents, write_contents};
    use crate::digest::Digest;
    use crate::layout::PAGE_BYTES;
    use crate::manifest::ManifestError;
    use crate::page::PageSource;
    use crate::snapshot::OpenError;
    use crate::testing::{Memory, TestStore, memory, tag};
    use std::fs;

    fn description(memory: &Memory) -> Description {
        Description {
            created_unix_ms: 1,
            cpu_features: vec!["sse4_2".into(), "avx2".into(), "avx2".into()],
            layout: memory.layout.clone(),
            about: About::from_iter([("image".to_owned(), "debian".into())]),
            disk_layers: vec![],
        }
    }

    /// What the process does: it gets files and returns what goes over a socket.
    fn process(files: NewFiles, memory: &Memory, base: Option<&dyn PageSource>) -> Written {
        let new = NewContents { state_version: 3, state: b"registers", memory, base };
        let candidates = &mut std::iter::once(0..memory.pages());
        let written = write_contents(&files, &new, candidates, &mut |_| ControlFlow::Continue(())).unwrap();
        serde_json::from_slice(&serde_json::to_vec(&written).unwrap()).unwrap()
    }

    fn count(store: &TestStore) -> usize {
        fs::read_dir(store.path()).unwrap().count()
    }

    /// A store with `base`, and a draft of a diff of it whose contents are written.
    fn written_diff() -> (TestStore, Memory, Draft, Written) {
        let store = TestStore::new();
        let link = store.full("base", &memory(&[1, 2, 3]));
        let after = memory(&[1, 7, 0]);
        let draft = store.draft(&tag("head"), Some(&link)).unwrap();
        let chain = Chain::open(store.open_chain(&tag("base")).unwrap()).unwrap();
        let written = process(draft.files().unwrap(), &after, Some(&chain));
        (store, after, draft, written)
    }

    #[test]
    fn the_halves_make_a_snapshot_that_appears_when_it_is_published() {
        let (store, after, draft, written) = written_diff();
        assert_eq!(store.list().unwrap().len(), 1);
        assert_eq!(store.sweep().unwrap(), 0);
        let sealed = draft.publish(description(&after), written).unwrap();
        assert_eq!(count(&store), 2);
        let chain = Chain::load(&store, &tag("head")).unwrap();
        assert_eq!(*chain.head().sealed(), sealed);
        assert_eq!(sealed.manifest.about["image"], "debian");
        assert_eq!(sealed.manifest.cpu_features, ["avx2", "sse4_2"]);
        let mut found = Memory::of_regions(&[3]);
        chain.assemble(&mut found).unwrap();
        assert_eq!(found.bytes, after.bytes);
    }

    #[test]
    fn a_draft_that_is_dropped_leaves_nothing() {
        let (store, _, draft, _) = written_diff();
        let kept = draft.files().unwrap();
        assert_eq!(count(&store), 2);
        drop(draft);
        assert_eq!(count(&store), 1);
        // The process may notice later.
        kept.memory.sync_all().unwrap();
        store.draft(&tag("head"), None).unwrap();
    }

    #[test]
    fn a_process_that_lies_about_what_it_wrote_is_refused() {
        let refused = |lie: fn(&mut Written, &mut Description)| {
            let (store, after, draft, mut written) = written_diff();
            let mut description = description(&after);
            lie(&mut written, &mut description);
            let error = draft.publish(description, written).unwrap_err();
            assert_eq!(count(&store), 1, "{error}");
            error
        };
        let error = refused(|written, _| written.state.size += 1);
        let text = "state.bin has 105 bytes, expected the 106 that are said to be written";
        assert_eq!(error.to_string(), text);
        let error = refused(|written, _| written.memory.size -= PAGE_BYTES);
        assert!(matches!(error, WriteError::Size { name: "memory.bin", .. }), "{error}");
        let error = refused(|written, _| written.map.as_mut().unwrap().size += 16);
        assert!(matches!(error, WriteError::Size { name: "memory.map", .. }), "{error}");
        let error = refused(|written, _| written.map = None);
        assert_eq!(error.to_string(), "files for a diff snapshot, but what is written is a full one");
        let error = refused(|_, description| description.layout = memory(&[1, 2]).layout);
        assert!(matches!(error, WriteError::OtherMemory), "{error}");
        let error = refused(|_, description| description.cpu_features.push("with space".into()));
        assert!(matches!(error, WriteError::Description(ManifestError::FeatureName { .. })), "{error}");
    }

    #[test]
    fn files_beyond_the_limits_of_a_manifest_are_refused() {
        let store = TestStore::new();
        let content = memory(&[1, 2]);
        for (state, pages) in [(95, 2), ((64 << 20) + 1, 2), (96, 1), (96, 3)] {
            let draft = store.draft(&tag("new"), None).unwrap();
            let files = draft.files().unwrap();
            files.state.set_len(state).unwrap();
            files.memory.set_len(pages * PAGE_BYTES).unwrap();
            let entry = |size| FileEntry { size, digest: Digest::of(b"") };
            let written = Written { state: entry(state), memory: entry(pages * PAGE_BYTES), map: None };
            let error = draft.publish(description(&content), written).unwrap_err();
            assert!(matches!(error, WriteError::Description(ManifestError::FileSize { .. })), "{error}");
        }
        assert_eq!(count(&store), 0);
    }

    #[test]
    fn a_wrong_digest_and_a_later_change_are_found_by_whoever_loads() {
        let load = |store: &TestStore| Chain::load(store, &tag("head")).unwrap_err();
        let (store, after, draft, mut written) = written_diff();
        written.memory.digest = Digest::of(b"something else");
        draft.publish(description(&after), written).unwrap();
        assert!(matches!(load(&store), ChainError::Snapshot(OpenError::Digest { .. })));

        let (store, after, draft, written) = written_diff();
        let kept = draft.files().unwrap();
        draft.publish(description(&after), written).unwrap();
        kept.memory.set_len(0).unwrap();
        assert!(matches!(load(&store), ChainError::Snapshot(OpenError::Truncated { .. })));
    }

    #[test]
    fn the_name_and_the_parent_are_checked_again_when_it_is_published() {
        let (store, after, draft, written) = written_diff();
        store.full("head", &memory(&[5]));
        let error = draft.publish(description(&after), written).unwrap_err();
        assert!(matches!(error, WriteError::Exists { .. }), "{error}");

        for replaced in [false, true] {
            let (store, after, draft, written) = written_diff();
            store.remove(&tag("base")).unwrap();
            if replaced {
                store.full("base", &memory(&[9, 9, 9]));
            }
            let error = draft.publish(description(&after), written).unwrap_err();
            match replaced {
                false => assert!(matches!(error, WriteError::Parent(ChainError::Missing { .. })), "{error}"),
                true => assert!(matches!(error, WriteError::WrongParent { .. }), "{error}"),
            }
            assert_eq!(count(&store), usize::from(replaced));
        }
    }
}
