//! A snapshot that comes from elsewhere: its manifest is there first, its files follow, and it appears when they are what the manifest
//! says.
//!
//! ```text
//!   Store::receive      .tmp-…/   empty files
//!   whoever fetches     state.bin, memory.map, frames of memory.bin, each checked before it is written
//!   Received::publish   all compared with the manifest ─▶ local.json ─▶ manifest.json ─▶ sync ─▶ rename ─▶ sync
//! ```

use std::fs::{self, File};
use std::io;
use std::path::Path;

use crate::digest::Digest;
use crate::draft::Draft;
use crate::files;
use crate::local::Local;
use crate::manifest::{Content, Link, Manifest, SealedManifest};
use crate::page_map::PageMap;
use crate::snapshot::{OpenError, Snapshot, read_state};
use crate::snapshot_files::SnapshotFiles;
use crate::store::{Store, StoreError, Stored};
use crate::tag::Tag;
use crate::write::WriteError;

/// A snapshot that is coming. It is removed with this value, unless it is published.
#[derive(Debug)]
pub struct Received {
    draft: Draft,
    sealed: SealedManifest,
    manifest: Vec<u8>,
    local: Local,
    pub state: File,
    pub memory: File,
    pub map: File,
}

/// A snapshot was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("its manifest is of an older format, which does not travel")]
    OldFormat,
    #[error("its manifest names {}, expected {}", named(found), named(expected))]
    Parent { found: Option<Digest>, expected: Option<Digest> },
    #[error("the frames that came are not those of its memory.map")]
    Frames,
    #[error(transparent)]
    File(#[from] OpenError),
    #[error("what is known of it here cannot be written")]
    Local(#[source] crate::local::LocalError),
    #[error("it cannot be kept")]
    Write(#[from] WriteError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn named(parent: &Option<Digest>) -> String {
    parent.map_or("no parent".into(), |digest| format!("the parent {digest}"))
}

impl Store {
    /// Begins to receive a snapshot, whose parent is here. The bytes are its manifest, as it was sealed.
    pub fn receive(
        &self,
        tag: &Tag,
        parent: Option<&Link>,
        manifest: Vec<u8>,
        local: Local,
    ) -> Result<Received, ReceiveError> {
        let sealed = Manifest::parse(&manifest)
            .map_err(|source| OpenError::Manifest { path: files::MANIFEST.into(), source })?;
        if !matches!(sealed.manifest.content, Content::Framed { .. }) {
            return Err(ReceiveError::OldFormat);
        }
        let (found, expected) = (sealed.manifest.parent, parent.map(|parent| parent.digest));
        if found != expected {
            return Err(ReceiveError::Parent { found, expected });
        }
        let draft = self.draft(tag, parent)?;
        draft.check_memory(&sealed.manifest.layout)?;
        let files = draft.files().map_err(StoreError::at("open", &draft.path(files::MEMORY)))?;
        let path = draft.path(files::MAP);
        let map = files::create(&path).map_err(StoreError::at("create", &path))?;
        let local = Local { parent: parent.map(|parent| parent.tag.clone()), ..local };
        Ok(Received { draft, sealed, manifest, local, state: files.state, memory: files.memory, map })
    }
}

impl Received {
    pub fn manifest(&self) -> &Manifest {
        &self.sealed.manifest
    }

    /// The digests of the frames of its memory, when the map is there. The map is checked.
    pub fn frames(&self) -> Result<Vec<Digest>, ReceiveError> {
        let map = self.open()?;
        Ok(map.map().and_then(PageMap::frames).unwrap_or_default().to_vec())
    }

    /// Gives it its name. `frames` are the digests of those that were written to `memory`, each compared with what was written.
    pub fn publish(mut self, frames: &[Digest]) -> Result<Stored, ReceiveError> {
        read_state(Path::new(""), self.state.try_clone().ok(), &self.sealed.manifest.state)?;
        if self.frames()? != frames {
            return Err(ReceiveError::Frames);
        }
        for (file, name) in
            [(&self.state, files::STATE), (&self.memory, files::MEMORY), (&self.map, files::MAP)]
        {
            file.sync_all().map_err(StoreError::at("sync", &self.draft.path(name)))?;
        }
        self.draft.close();
        let runs = self.draft.path(files::RUNS);
        fs::remove_file(&runs).map_err(StoreError::at("remove", &runs))?;
        self.draft.write(files::LOCAL, &self.local.encode().map_err(ReceiveError::Local)?)?;
        self.draft.write(files::MANIFEST, &self.manifest)?;
        self.draft.sync()?;
        let stored = Stored { tag: self.draft.tag().clone(), sealed: self.sealed, local: self.local };
        self.draft.rename()?;
        Ok(stored)
    }

    /// Its files as a load opens them. The memory has its length before it has its contents.
    fn open(&self) -> Result<Snapshot, ReceiveError> {
        let again = |file: &File, name: &str| -> Result<File, StoreError> {
            file.try_clone().map_err(StoreError::at("open", &self.draft.path(name)))
        };
        let size = self.sealed.manifest.memory.size;
        let grown = files::length(&self.memory).and_then(|length| match length {
            found if found > size => Err(io::ErrorKind::FileTooLarge.into()),
            _ => self.memory.set_len(size),
        });
        grown.map_err(StoreError::at("write", &self.draft.path(files::MEMORY)))?;
        let files = SnapshotFiles {
            name: self.draft.tag().as_str().into(),
            manifest: again(&self.state, files::STATE)?,
            state: None,
            memory: again(&self.memory, files::MEMORY)?,
            map: Some(again(&self.map, files::MAP)?),
        };
        Ok(Snapshot::new(self.sealed.clone(), files)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::testing::{Memory, TestStore, memory, tag};
    use std::os::unix::fs::FileExt;

    type Change<'a> = &'a dyn Fn(&mut [Vec<u8>; 3], &mut Vec<Digest>);

    /// Sends a snapshot from one store to another, with its files changed on the way.
    fn send(
        from: &TestStore,
        name: &str,
        to: &TestStore,
        parent: Option<&Link>,
        change: Change<'_>,
    ) -> Result<Stored, ReceiveError> {
        let read = |file: &str| fs::read(from.path().join(name).join(file)).unwrap();
        let mut files = [files::STATE, files::MAP, files::MEMORY].map(read);
        let mut frames = PageMap::parse(&files[1]).unwrap().frames().unwrap().to_vec();
        change(&mut files, &mut frames);
        let local = Local { layers: vec![tag("here")], ..Local::default() };
        let received = to.receive(&tag("received"), parent, read(files::MANIFEST), local)?;
        for (file, bytes) in [&received.state, &received.map, &received.memory].into_iter().zip(&files) {
            file.write_all_at(bytes, 0).unwrap();
        }
        received.publish(&frames)
    }

    #[test]
    fn a_snapshot_that_came_whole_is_there_under_its_new_name() {
        let (from, to) = (TestStore::new(), TestStore::new());
        let base = from.full("base", &memory(&[1, 0, 3]));
        from.diff("head", &base, &memory(&[1, 7, 0]));
        let stored = send(&from, "base", &to, None, &|_, _| {}).unwrap();
        assert_eq!((stored.tag.as_str(), stored.sealed.digest), ("received", base.digest));
        assert_eq!(to.stored("received"), stored);
        assert_eq!(stored.local.layers, [tag("here")]);
        fs::rename(to.path().join("received"), to.path().join("below")).unwrap();
        let below = to.link("below");
        send(&from, "head", &to, Some(&below), &|_, _| {}).unwrap();
        let found = Memory::of_regions(&[3]);
        Chain::load(&to, &tag("received")).unwrap().assemble(&found).unwrap();
        assert!(found.received() == memory(&[1, 7, 0]));
    }

    #[test]
    fn what_is_not_what_the_manifest_says_is_not_there() {
        let (from, to) = (TestStore::new(), TestStore::new());
        let base = from.full("base", &memory(&[1, 0, 3]));
        from.diff("head", &base, &memory(&[1, 7, 0]));
        let refused = |change: Change<'_>| {
            let error = send(&from, "base", &to, None, change).unwrap_err();
            assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "{error}");
            error
        };
        let error = refused(&|[state, ..], _| state[100] ^= 1);
        assert!(matches!(error, ReceiveError::File(OpenError::Digest { .. })), "{error}");
        let error = refused(&|[_, map, _], _| map[120] ^= 1);
        assert!(matches!(error, ReceiveError::File(OpenError::Digest { .. })), "{error}");
        let error = refused(&|[_, map, _], _| map.truncate(100));
        assert!(matches!(error, ReceiveError::File(OpenError::Truncated { .. })), "{error}");
        assert!(matches!(refused(&|_, frames| frames[0] = Digest::of(b"other")), ReceiveError::Frames));
        assert!(matches!(refused(&|_, frames| frames.clear()), ReceiveError::Frames));
        let error = refused(&|[_, _, memory], _| memory.push(0));
        assert!(matches!(error, ReceiveError::Store(_)), "{error}");
        let error = send(&from, "head", &to, None, &|_, _| {}).unwrap_err();
        assert!(error.to_string().starts_with("its manifest names the parent"), "{error}");
        let (old, _) = TestStore::of_version_1();
        let manifest = fs::read(old.path().join("base/manifest.json")).unwrap();
        let error = to.receive(&tag("old"), None, manifest, Local::default()).unwrap_err();
        assert!(matches!(error, ReceiveError::OldFormat), "{error}");
    }
}
