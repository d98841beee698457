//! A snapshot opened for reading: its manifest, map and state are checked before anything is used, its memory while it is read.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use crate::checked::{check_image, check_length, read_checked};
use crate::digest::Digest;
use crate::files;
use crate::frame;
use crate::layout::PAGE_BYTES;
use crate::local::LocalError;
use crate::manifest::{Content, FileEntry, MAX_MANIFEST, Manifest, ManifestError, SealedManifest};
use crate::manifest_file::{self, Parsed};
use crate::page_map::{PageMap, PageMapError, RunKind};
use crate::snapshot_files::SnapshotFiles;
use crate::state::{StateError, VmState};
use crate::tag::{Tag, TagError};

/// A snapshot whose files are those of its manifest. Its VM state is the chain's: of ancestors it is not read.
#[derive(Debug)]
pub struct Snapshot {
    name: PathBuf,
    sealed: SealedManifest,
    memory: File,
    map: Option<PageMap>,
}

/// A snapshot cannot be used. Its own text names the file; what is wrong with a file's content is the source.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} cannot be used", path.display())]
    Manifest { path: PathBuf, source: ManifestError },
    #[error("{} cannot be used", path.display())]
    State { path: PathBuf, source: StateError },
    #[error("{} cannot be used", path.display())]
    Map { path: PathBuf, source: PageMapError },
    #[error("{} is truncated: {found} bytes, expected {expected}", path.display())]
    Truncated { path: PathBuf, found: u64, expected: u64 },
    #[error("{} is too long: {found} bytes, expected {expected}", path.display())]
    TooLong { path: PathBuf, found: u64, expected: u64 },
    #[error("{} is damaged: its blake3 digest is {found}, expected {expected}", path.display())]
    Digest { path: PathBuf, found: Digest, expected: Digest },
    #[error("{} is damaged: the blake3 digest of its frame {index}, 2 MiB, is {found}, expected {expected}", path.display())]
    Frame { path: PathBuf, index: u64, found: Digest, expected: Digest },
    #[error("{} describes {found} pages of {what}, expected {expected}", path.display())]
    Pages { path: PathBuf, what: &'static str, found: u64, expected: u64 },
    #[error("{} cannot be used", path.display())]
    Local { path: PathBuf, source: LocalError },
    #[error("{} is not named by a tag", path.display())]
    Tag { path: PathBuf, source: TagError },
    #[error("the directory {} has the manifest of {found}", path.display())]
    OtherTag { path: PathBuf, found: Tag },
    #[error("{} says that pages have become zero, but there is no parent in which they were not", path.display())]
    ZeroRuns { path: PathBuf },
    #[error("{} has no digests of frames, expected one for each 2 MiB", path.display())]
    NoFrames { path: PathBuf },
    #[error("{} was not handed over", path.display())]
    NotGiven { path: PathBuf },
    #[error("{} was handed over, but the manifest does not list it", path.display())]
    NotListed { path: PathBuf },
}

impl OpenError {
    /// The file or directory that cannot be used.
    pub fn path(&self) -> &Path {
        match self {
            OpenError::Io { path, .. }
            | OpenError::Manifest { path, .. }
            | OpenError::State { path, .. }
            | OpenError::Map { path, .. }
            | OpenError::Truncated { path, .. }
            | OpenError::TooLong { path, .. }
            | OpenError::Digest { path, .. }
            | OpenError::Frame { path, .. }
            | OpenError::Pages { path, .. }
            | OpenError::Local { path, .. }
            | OpenError::Tag { path, .. }
            | OpenError::OtherTag { path, .. }
            | OpenError::ZeroRuns { path }
            | OpenError::NoFrames { path }
            | OpenError::NotGiven { path }
            | OpenError::NotListed { path } => path,
        }
    }
}

/// This host cannot run the snapshot.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequirementError {
    #[error("snapshot {tag} needs CPU features that this host does not have: {}", missing.join(", "))]
    Cpu { tag: String, missing: Vec<String> },
    #[error("snapshot {tag} needs {} MiB of memory, {} MiB are available", needed.div_ceil(1 << 20), available >> 20)]
    Memory { tag: String, needed: u64, available: u64 },
}

impl Snapshot {
    /// Takes the files that belong to a manifest. What is quick is checked: the map, and all sizes. The memory is not yet
    /// hashed.
    pub(crate) fn new(sealed: SealedManifest, files: SnapshotFiles) -> Result<Snapshot, OpenError> {
        let SnapshotFiles { name, memory, map, .. } = files;
        let path = name.join(files::MAP);
        let map = match (sealed.manifest.content.map(), map) {
            (None, None) => None,
            (None, Some(_)) => return Err(OpenError::NotListed { path }),
            (Some(_), None) => return Err(OpenError::NotGiven { path }),
            (Some(map), Some(file)) => Some(open_map(&path, &file, &map, &sealed.manifest)?),
        };
        check_length(&name.join(files::MEMORY), &memory, sealed.manifest.memory.size)?;
        Ok(Snapshot { name, sealed, memory, map })
    }

    /// Checks every byte of memory that has no digests of frames, on all cores. Readers check frames.
    pub(crate) fn verify_whole_memory(&self) -> Result<(), OpenError> {
        let FileEntry { size, digest } = self.manifest().memory;
        match self.manifest().content {
            Content::Framed { .. } => Ok(()),
            Content::Packed { .. } | Content::Sparse => {
                check_image(&self.path(files::MEMORY), &self.memory, size, digest)
            }
        }
    }

    /// Reads a frame of the memory and checks it. `buffer` has room for one.
    pub(crate) fn read_frame<'a>(&self, index: u64, buffer: &'a mut [u8]) -> Result<&'a [u8], OpenError> {
        let path = || self.path(files::MEMORY);
        let frames = self.map().and_then(PageMap::frames).unwrap_or_default();
        let expected = usize::try_from(index).ok().and_then(|index| frames.get(index));
        let expected = *expected.ok_or_else(|| OpenError::NoFrames { path: self.path(files::MAP) })?;
        let bytes = frame::read(&self.memory, self.manifest().memory.size, index, buffer)
            .map_err(|source| OpenError::Io { path: path(), source })?;
        let found = Digest::of(bytes);
        if found != expected {
            return Err(OpenError::Frame { path: path(), index, found, expected });
        }
        Ok(bytes)
    }

    /// One of its files, for messages.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.name.join(file)
    }

    /// What to call it in messages: its tag, as far as its opener knows it.
    pub fn label(&self) -> String {
        label(&self.name)
    }

    pub fn manifest(&self) -> &Manifest {
        &self.sealed.manifest
    }

    /// The manifest with its digest.
    pub fn sealed(&self) -> &SealedManifest {
        &self.sealed
    }

    /// `memory.bin`
    pub fn memory_file(&self) -> &File {
        &self.memory
    }

    /// `memory.map`, which all have but full snapshots of version 1.
    pub fn map(&self) -> Option<&PageMap> {
        self.map.as_ref()
    }

    /// Refuses a snapshot whose guest may use CPU features that this host does not have.
    pub fn check_cpu(&self, host_features: &BTreeSet<String>) -> Result<(), RequirementError> {
        let needed = self.manifest().cpu.features.iter();
        let missing: Vec<_> = needed.filter(|&feature| !host_features.contains(feature)).cloned().collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(RequirementError::Cpu { tag: self.label(), missing })
    }

    /// Refuses a snapshot whose memory is larger than `available` bytes.
    pub fn check_memory(&self, available: u64) -> Result<(), RequirementError> {
        let needed = self.manifest().layout.size();
        if needed <= available {
            return Ok(());
        }
        Err(RequirementError::Memory { tag: self.label(), needed, available })
    }
}

/// What a snapshot is called in messages whose files are at `name`.
pub(crate) fn label(name: &Path) -> String {
    name.file_name().unwrap_or(name.as_os_str()).to_string_lossy().into_owned()
}

/// Reads and checks a manifest, and nothing else of the snapshot that is called `name`.
pub(crate) fn read_manifest(name: &Path, file: &File) -> Result<Parsed, OpenError> {
    let path = name.join(files::MANIFEST);
    let failed = |source| OpenError::Io { path: path.clone(), source };
    let length = files::length(file).map_err(failed)?;
    // One byte more than allowed is enough for the parser to refuse it.
    let bytes = files::read(file, length.min(MAX_MANIFEST + 1)).map_err(failed)?;
    manifest_file::parse(&bytes).map_err(|source| OpenError::Manifest { path, source })
}

/// Reads and checks the VM's state.
pub(crate) fn read_state(name: &Path, file: Option<File>, entry: &FileEntry) -> Result<VmState, OpenError> {
    let path = name.join(files::STATE);
    let Some(file) = file else {
        return Err(OpenError::NotGiven { path });
    };
    let bytes = read_checked(&path, &file, entry)?;
    VmState::parse(bytes).map_err(|source| OpenError::State { path, source })
}

pub(crate) fn open_map(
    path: &Path,
    file: &File,
    entry: &FileEntry,
    manifest: &Manifest,
) -> Result<PageMap, OpenError> {
    let bytes = read_checked(path, file, entry)?;
    let map = PageMap::parse(&bytes).map_err(|source| OpenError::Map { path: path.into(), source })?;
    let counts = [
        ("memory", map.memory_pages(), manifest.layout.pages()),
        ("data", map.data_pages(), manifest.memory.size / PAGE_BYTES),
    ];
    for (what, found, expected) in counts {
        if found != expected {
            return Err(OpenError::Pages { path: path.into(), what, found, expected });
        }
    }
    if manifest.parent.is_none() && map.runs().iter().any(|run| run.kind == RunKind::Zero) {
        return Err(OpenError::ZeroRuns { path: path.into() });
    }
    if let Content::Framed { .. } = manifest.content {
        let frames = map.frames().ok_or_else(|| OpenError::NoFrames { path: path.into() })?;
        // Otherwise a map and a manifest of two snapshots would be told apart only by what is loaded.
        let (found, expected) = (frame::digest_of(frames), manifest.memory.digest);
        if found != expected {
            return Err(OpenError::Digest { path: path.into(), found, expected });
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assemble::AssembleError;
    use crate::chain::{Chain, ChainError};
    use crate::store::Store;
    use crate::testing::{Memory, TestStore, memory, tag};
    use std::fs;
    use std::os::unix::fs::FileExt;

    /// A full snapshot `base` of few pages and a diff `diff` of it with data and a page that became zero.
    fn small() -> TestStore {
        let store = TestStore::new();
        let mut content = memory(&[1, 0, 3, 4]);
        let base = store.full("base", &content);
        content.set(1, 7);
        content.set(3, 0);
        store.diff("diff", &base, &content);
        store
    }

    fn files_of(store: &TestStore) -> Vec<PathBuf> {
        let mut files: Vec<_> = ["base", "diff"]
            .iter()
            .flat_map(|tag| fs::read_dir(store.path().join(tag)).unwrap())
            .map(|entry| entry.unwrap().path())
            .collect();
        files.sort();
        assert_eq!(files.len(), 2 * 5);
        files
    }

    /// Memory is large and all the same: some of its bytes are enough, on every page and at every bit. Of the other files
    /// it is every byte.
    fn stride(file: &Path) -> usize {
        if file.ends_with(files::MEMORY) { 61 } else { 1 }
    }

    /// Loads the snapshot that a file belongs to, and reads all of its memory.
    fn load(file: &Path) -> Result<(), OpenError> {
        let directory = file.parent().unwrap();
        let store = Store::new(directory.parent().unwrap());
        let name = tag(directory.file_name().unwrap().to_str().unwrap());
        let chain = Chain::load(&store, &name).map_err(|error| match error {
            ChainError::Snapshot(error) => error,
            other => panic!("{other}"),
        })?;
        chain.assemble(&Memory::of_regions(&[4])).map_err(|error| match error {
            AssembleError::Memory(error) => error,
            other => panic!("{other}"),
        })
    }

    fn refused(file: &Path) -> OpenError {
        load(file).unwrap_err()
    }

    #[test]
    fn every_flipped_byte_of_every_file_is_refused() {
        for file in files_of(&small()) {
            let good = fs::read(&file).unwrap();
            let open = File::options().write(true).open(&file).unwrap();
            for at in (0..good.len()).step_by(stride(&file)) {
                open.write_all_at(&[good[at] ^ 1 << (at % 8)], at as u64).unwrap();
                let message = chain_text(&refused(&file));
                assert!(message.contains(file.to_str().unwrap()), "{message}");
                assert!(message.contains("damaged") || message.contains("does not end"), "{message}");
                open.write_all_at(&good[at..=at], at as u64).unwrap();
            }
            load(&file).unwrap();
        }
    }

    #[test]
    fn every_truncation_of_every_file_is_refused() {
        for file in files_of(&small()) {
            let good = fs::read(&file).unwrap();
            let open = File::options().write(true).open(&file).unwrap();
            for length in (0..good.len()).rev().step_by(stride(&file)) {
                open.set_len(length as u64).unwrap();
                let message = chain_text(&refused(&file));
                assert!(message.contains(file.to_str().unwrap()), "{message}");
                assert!(message.contains("truncated") || message.contains("first line"), "{message}");
            }
            fs::write(&file, [&good[..], b"\0"].concat()).unwrap();
            let message = chain_text(&refused(&file));
            assert!(message.contains(file.to_str().unwrap()), "{message}");
            fs::write(&file, &good).unwrap();
            load(&file).unwrap();
        }
    }

    #[test]
    fn a_missing_or_strange_file_is_named() {
        let store = small();
        for file in files_of(&store) {
            let aside = store.path().join("aside");
            fs::rename(&file, &aside).unwrap();
            let missing = refused(&file);
            assert!(matches!(&missing, OpenError::Io { path, source }
                if *path == file && source.kind() == io::ErrorKind::NotFound));
            // The content would be right; a link may point anywhere.
            std::os::unix::fs::symlink(&aside, &file).unwrap();
            assert!(matches!(refused(&file), OpenError::Io { path, .. } if path == file));
            fs::remove_file(&file).unwrap();
            fs::rename(&aside, &file).unwrap();
            load(&file).unwrap();
        }
    }

    #[test]
    fn a_map_that_does_not_fit_the_manifest_is_refused() {
        let store = small();
        let directory = store.path().join("diff");
        let manifest = store.manifest("diff");
        let forge = |map: PageMap| {
            let bytes = map.encode();
            fs::write(directory.join(files::MAP), &bytes).unwrap();
            let mut manifest = manifest.clone();
            let map = FileEntry { size: bytes.len() as u64, digest: Digest::of(&bytes) };
            manifest.content = Content::Framed { map };
            fs::write(directory.join(files::MANIFEST), manifest.seal().unwrap().1).unwrap();
            refused(&directory.join(files::MAP)).to_string()
        };
        let message = forge(PageMap::new(1000));
        assert!(message.ends_with("memory.map describes 1000 pages of memory, expected 4"), "{message}");
        let message = forge(PageMap::new(4));
        assert!(message.ends_with("memory.map describes 0 pages of data, expected 1"), "{message}");
        let mut one = PageMap::new(4);
        one.push(1, RunKind::Data).unwrap();
        let message = forge(one.clone());
        assert!(
            message.ends_with("memory.map has no digests of frames, expected one for each 2 MiB"),
            "{message}"
        );
        let message = forge(one.with_frames(vec![Digest::of(b"another")]).unwrap());
        assert!(message.contains("memory.map is damaged"), "{message}");
    }

    #[test]
    fn a_host_that_lacks_something_is_refused_by_name() {
        let store = small();
        let chain = Chain::load(&store, &tag("base")).unwrap();
        let snapshot = chain.head();
        assert_eq!(snapshot.manifest().cpu.features, ["avx2", "sse4_2"]);
        let host = |features: &[&str]| features.iter().map(|name| name.to_string()).collect();
        snapshot.check_cpu(&host(&["aes", "avx2", "sse4_2"])).unwrap();
        assert_eq!(
            snapshot.check_cpu(&host(&["aes"])).unwrap_err().to_string(),
            "snapshot base needs CPU features that this host does not have: avx2, sse4_2"
        );
        snapshot.check_memory(4 * PAGE_BYTES).unwrap();
        assert_eq!(
            snapshot.check_memory(4 * PAGE_BYTES - 1).unwrap_err().to_string(),
            "snapshot base needs 1 MiB of memory, 0 MiB are available"
        );
    }

    /// An error and its causes, as the edge prints them.
    fn chain_text(error: &dyn std::error::Error) -> String {
        std::iter::successors(Some(error), |error| error.source())
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(": ")
    }
}
