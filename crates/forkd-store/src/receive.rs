//! A snapshot that comes from elsewhere: its manifest is there first, its files follow, and it appears when they are what the manifest
//! says.
//!
//! ```text
//!   the receiver             state.bin, memory.map ─▶ check_state, memory_frames ─▶ memory.bin, each frame checked before it is written
//!   Store::receive           .tmp-…/   the same files under further names, all compared with the manifest
//!                            ─▶ local.json ─▶ manifest.json ─▶ sync ─▶ rename ─▶ sync
//! ```

use std::fs::{self, File};
use std::path::Path;

use crate::digest::Digest;
use crate::draft::Draft;
use crate::files;
use crate::local::Local;
use crate::manifest::{Content, Link, Manifest, SealedManifest};
use crate::page_map::PageMap;
use crate::snapshot::{OpenError, Snapshot, open_map, read_state};
use crate::snapshot_files::SnapshotFiles;
use crate::store::{Store, StoreError, Stored};
use crate::tag::Tag;
use crate::write::WriteError;

/// The files of a received snapshot, which are not written any more. They stay where they are: the store gives them further
/// names, or copies them from another disk.
#[derive(Debug, Clone, Copy)]
pub struct ReceivedFiles<'a> {
    pub state: &'a Path,
    pub map: &'a Path,
    pub memory: &'a Path,
    /// The digests of the frames of `memory`, each compared with what was written.
    pub frames: &'a [Digest],
}

/// A snapshot was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    #[error("its manifest has an older format, which cannot be transferred")]
    OldFormat,
    #[error("its manifest names {}, expected {}", named(found), named(expected))]
    Parent { found: Option<Digest>, expected: Option<Digest> },
    #[error("the received frames do not match its memory.map")]
    Frames,
    #[error(transparent)]
    File(#[from] OpenError),
    #[error("cannot write its local metadata")]
    Local(#[source] crate::local::LocalError),
    #[error("cannot store it")]
    Write(#[from] WriteError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn named(parent: &Option<Digest>) -> String {
    parent.map_or("no parent".into(), |digest| format!("the parent {digest}"))
}

/// Checks a `state.bin` that came.
pub fn check_state(manifest: &Manifest, state: &File) -> Result<(), ReceiveError> {
    read_state(Path::new(""), state.try_clone().ok(), &manifest.state)?;
    Ok(())
}

/// Checks a `memory.map` that came. Returns the digests of the frames of the memory.
pub fn memory_frames(manifest: &Manifest, map: &File) -> Result<Vec<Digest>, ReceiveError> {
    let Content::Framed { map: entry } = manifest.content else { return Err(ReceiveError::OldFormat) };
    let map = open_map(Path::new(files::MAP), map, &entry, manifest)?;
    Ok(map.frames().unwrap_or_default().to_vec())
}

impl Store {
    /// Makes a snapshot of files that came. Its parent is here. `manifest` is its manifest, as it was sealed.
    pub fn receive(
        &self,
        tag: &Tag,
        parent: Option<&Link>,
        manifest: Vec<u8>,
        local: Local,
        received: ReceivedFiles<'_>,
    ) -> Result<Stored, ReceiveError> {
        let sealed = Manifest::parse(&manifest)
            .map_err(|source| OpenError::Manifest { path: files::MANIFEST.into(), source })?;
        if !matches!(sealed.manifest.content, Content::Framed { .. }) {
            return Err(ReceiveError::OldFormat);
        }
        let (found, expected) = (sealed.manifest.parent, parent.map(|parent| parent.digest));
        if found != expected {
            return Err(ReceiveError::Parent { found, expected });
        }
        let mut draft = self.draft(tag, parent)?;
        draft.check_memory(&sealed.manifest.layout)?;
        draft.close();
        for name in [files::STATE, files::MEMORY, files::RUNS] {
            let path = draft.path(name);
            fs::remove_file(&path).map_err(StoreError::at("remove", &path))?;
        }
        let files = [
            place(&draft, received.state, files::STATE)?,
            place(&draft, received.map, files::MAP)?,
            place(&draft, received.memory, files::MEMORY)?,
        ];
        check(&sealed, &draft, files, received.frames)?;
        let local = Local { parent: parent.map(|parent| parent.tag.clone()), ..local };
        draft.write(files::LOCAL, &local.encode().map_err(ReceiveError::Local)?)?;
        draft.write(files::MANIFEST, &manifest)?;
        draft.sync()?;
        let stored = Stored { tag: tag.clone(), sealed, local };
        draft.rename()?;
        Ok(stored)
    }
}

/// Gives a file a name in the draft, and makes its contents durable.
fn place(draft: &Draft, from: &Path, name: &str) -> Result<File, StoreError> {
    let path = draft.path(name);
    files::link_or_copy(from, &path).map_err(StoreError::at("link or copy", from))?;
    let file = File::open(&path).map_err(StoreError::at("open", &path))?;
    file.sync_all().map_err(StoreError::at("sync", &path))?;
    Ok(file)
}

/// Compares the files with the manifest, as a load does, and the frames with the map.
fn check(
    sealed: &SealedManifest,
    draft: &Draft,
    [state, map, memory]: [File; 3],
    frames: &[Digest],
) -> Result<(), ReceiveError> {
    check_state(&sealed.manifest, &state)?;
    let name = draft.tag().as_str().into();
    let opened = SnapshotFiles { name, manifest: state, state: None, memory, map: Some(map) };
    let opened = Snapshot::new(sealed.clone(), opened)?;
    if opened.map().and_then(PageMap::frames).unwrap_or_default() != frames {
        return Err(ReceiveError::Frames);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::testing::{Memory, TestStore, memory, tag};

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
        let directory = tempfile::tempdir().unwrap();
        let [state, map, memory] = ["state", "map", "memory"].map(|name| directory.path().join(name));
        for (path, bytes) in [&state, &map, &memory].into_iter().zip(&files) {
            fs::write(path, bytes).unwrap();
        }
        let received = ReceivedFiles { state: &state, map: &map, memory: &memory, frames: &frames };
        let stored = to.receive(&tag("received"), parent, read(files::MANIFEST), local, received);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "they stay where they are");
        stored
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
        assert!(matches!(error, ReceiveError::File(_)), "{error}");
        let error = refused(&|[_, _, memory], _| memory.truncate(100));
        assert!(matches!(error, ReceiveError::File(OpenError::Truncated { .. })), "{error}");
        let error = send(&from, "head", &to, None, &|_, _| {}).unwrap_err();
        assert!(error.to_string().starts_with("its manifest names the parent"), "{error}");
        let (old, _) = TestStore::of_version_1();
        let manifest = fs::read(old.path().join("base/manifest.json")).unwrap();
        let nowhere = Path::new("/nonexistent");
        let files = ReceivedFiles { state: nowhere, map: nowhere, memory: nowhere, frames: &[] };
        let error = to.receive(&tag("old"), None, manifest, Local::default(), files).unwrap_err();
        assert!(matches!(error, ReceiveError::OldFormat), "{error}");
    }
}
