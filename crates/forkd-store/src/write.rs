//! Writing a snapshot: all of it appears at once, or none of it.
//!
//! ```text
//!   .tmp-…/   state.bin ─▶ memory.bin ─▶ memory.map ─▶ manifest.json ─▶ sync directory ─▶ rename to TAG ─▶ sync store
//!             (each synced before the next is begun)                                    │
//!   killed:   nothing there; the sweep removes the rest  ◀──────────────────────────────┴──▶  a whole snapshot
//! ```
//!
//! It runs on the caller's thread and holds three blocks of memory at most, so a zygote can do it behind the forks it serves.

use std::io;
use std::ops::{ControlFlow, Range};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::chain::{ChainError, MAX_CHAIN, ancestry};
use crate::digest::Digest;
use crate::draft::Draft;
use crate::files;
use crate::image::{FullImage, PackedImage};
use crate::layout::{PAGE_BYTES, PAGE_SIZE};
use crate::manifest::{
    Content, DiskLayer, FileEntry, Link, Manifest, ManifestError, SealedManifest, check_features,
    check_layers,
};
use crate::page::{BULK, BULK_PAGES, PageSource, is_zero};
use crate::page_map::{PageMap, PageMapError, RunKind};
use crate::state::{MAX_STATE, StateHeader};
use crate::store::{Store, StoreError};
use crate::tag::Tag;

/// What a snapshot is made from.
#[expect(missing_debug_implementations, reason = "a source of pages has nothing to show")]
pub struct NewSnapshot<'a> {
    pub tag: Tag,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// In any order.
    pub cpu_features: Vec<String>,
    pub disk_layers: Vec<DiskLayer>,
    /// The caller's number for the encoding of `state`.
    pub state_version: u32,
    pub state: &'a [u8],
    pub memory: &'a dyn PageSource,
    /// With a base, only what differs from it is written.
    pub base: Option<Base<'a>>,
}

/// What a diff is made against.
#[expect(missing_debug_implementations, reason = "a source of pages has nothing to show")]
pub struct Base<'a> {
    /// The snapshot that has the same memory.
    pub parent: Link,
    /// That memory: the chain itself, or a process that was loaded from it.
    pub memory: &'a dyn PageSource,
}

/// How far a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Begun,
    StateWritten,
    /// A piece of the memory, 1 MiB or less, was looked at and written as far as it differs. This comes often enough to
    /// stop soon, or to make pauses.
    PieceDone,
    MemoryWritten,
    MapWritten,
    ManifestWritten,
    DirectorySynced,
    /// It has its name. From here on the answer does not matter.
    Published,
}

/// Told about each step; may stop the writing there.
type Observer<'a> = dyn FnMut(Step) -> ControlFlow<()> + 'a;
/// Ranges of pages.
type Candidates<'a> = dyn Iterator<Item = Range<u64>> + 'a;

/// A snapshot was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("there is a snapshot {tag} already in {store}")]
    Exists { tag: Tag, store: String },
    #[error("the parent cannot be used")]
    Parent(#[source] ChainError),
    #[error("the parent {tag} has the digest {found}, expected {expected}")]
    WrongParent { tag: Tag, found: Digest, expected: Digest },
    #[error("the chain of {tag} has {MAX_CHAIN} snapshots already; write a full one")]
    TooDeep { tag: Tag },
    #[error("the memory has other regions than its base")]
    OtherMemory,
    #[error("the VM state has {found} bytes, expected at most {MAX_STATE} with its header")]
    StateTooLarge { found: usize },
    #[error("the description cannot be written")]
    Description(#[source] ManifestError),
    #[error("candidates {found:?}, expected pages from {after} on and at most {end}")]
    Candidates { found: Range<u64>, after: u64, end: u64 },
    #[error("cannot read the memory from page {page} on")]
    Source { page: u64, source: io::Error },
    #[error("the changed pages cannot be listed")]
    Map(#[from] PageMapError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("stopped on request")]
    Stopped,
}

impl Store {
    /// Writes a snapshot.
    ///
    /// `candidates` are the pages to look at, as ascending ranges that do not overlap: all that may differ from the base, or
    /// without a base all that may not be zero. They only save time; contents decide what is stored. `observe` is told about
    /// each step and can stop the writing.
    ///
    /// If only the last sync of the store's directory fails, the snapshot is there and the error says so.
    pub fn write(
        &self,
        mut new: NewSnapshot<'_>,
        candidates: &mut Candidates<'_>,
        observe: &mut Observer<'_>,
    ) -> Result<SealedManifest, WriteError> {
        new.cpu_features.sort_unstable();
        new.cpu_features.dedup();
        check_description(&new)?;
        // Again at the end, with the store locked; here it saves the work.
        self.check_place(&new)?;

        let draft = Draft::new(self)?;
        step(observe, Step::Begun)?;
        let state = write_state(&new, draft.path())?;
        step(observe, Step::StateWritten)?;
        let (memory, content) = write_memory(&new, candidates, observe, draft.path())?;

        let manifest = Manifest {
            tag: new.tag.clone(),
            created_unix_ms: new.created_unix_ms,
            cpu_features: std::mem::take(&mut new.cpu_features),
            layout: new.memory.layout().clone(),
            disk_layers: std::mem::take(&mut new.disk_layers),
            state,
            memory,
            content,
        };
        let (sealed, bytes) = manifest.seal().map_err(WriteError::Description)?;
        write_file(draft.path(), files::MANIFEST, &[&bytes])?;
        step(observe, Step::ManifestWritten)?;
        files::sync_directory(draft.path()).map_err(StoreError::at("sync", draft.path()))?;
        step(observe, Step::DirectorySynced)?;
        self.publish(&new, draft)?;
        let _too_late = observe(Step::Published);
        Ok(sealed)
    }

    fn publish(&self, new: &NewSnapshot<'_>, draft: Draft) -> Result<(), WriteError> {
        let _lock = self.lock()?;
        self.check_place(new)?;
        let path = self.path(&new.tag);
        draft.publish(&path).map_err(StoreError::at("create", &path))?;
        files::sync_directory(self.directory()).map_err(StoreError::at("sync", self.directory()))?;
        Ok(())
    }

    /// Checks that the name is free and that the parent is there.
    fn check_place(&self, new: &NewSnapshot<'_>) -> Result<(), WriteError> {
        if self.path(&new.tag).symlink_metadata().is_ok() {
            return Err(WriteError::Exists {
                tag: new.tag.clone(),
                store: self.directory().display().to_string(),
            });
        }
        let Some(Base { parent, .. }) = &new.base else {
            return Ok(());
        };
        let manifests = ancestry(self, &parent.tag).map_err(WriteError::Parent)?;
        if manifests.len() >= MAX_CHAIN {
            return Err(WriteError::TooDeep { tag: parent.tag.clone() });
        }
        let found = &manifests[0];
        if found.digest != parent.digest {
            return Err(WriteError::WrongParent {
                tag: parent.tag.clone(),
                found: found.digest,
                expected: parent.digest,
            });
        }
        if found.manifest.layout != *new.memory.layout() {
            return Err(WriteError::OtherMemory);
        }
        Ok(())
    }
}

fn check_description(new: &NewSnapshot<'_>) -> Result<(), WriteError> {
    check_features(&new.cpu_features).map_err(WriteError::Description)?;
    check_layers(&new.disk_layers).map_err(WriteError::Description)?;
    if (new.state.len() + StateHeader::LENGTH) as u64 > MAX_STATE {
        return Err(WriteError::StateTooLarge { found: new.state.len() });
    }
    match &new.base {
        Some(base) if base.memory.layout() != new.memory.layout() => Err(WriteError::OtherMemory),
        _ => Ok(()),
    }
}

fn step(observe: &mut Observer<'_>, step: Step) -> Result<(), WriteError> {
    match observe(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(WriteError::Stopped),
    }
}

fn write_state(new: &NewSnapshot<'_>, directory: &Path) -> Result<FileEntry, WriteError> {
    let header = StateHeader::new(new.state_version, new.state).encode();
    Ok(write_file(directory, files::STATE, &[&header, new.state])?)
}

/// Writes a small file and brings it to the disk.
fn write_file(directory: &Path, name: &str, parts: &[&[u8]]) -> Result<FileEntry, StoreError> {
    let path = directory.join(name);
    let mut hasher = blake3::Hasher::new();
    let mut size = 0;
    let mut write = || {
        let file = files::create(&path)?;
        for part in parts {
            file.write_all_at(part, size)?;
            hasher.update(part);
            size += part.len() as u64;
        }
        file.sync_all()
    };
    write().map_err(StoreError::at("write", &path))?;
    let digest = Digest::from_bytes(*hasher.finalize().as_bytes());
    Ok(FileEntry { size, digest })
}

fn write_memory(
    new: &NewSnapshot<'_>,
    candidates: &mut Candidates<'_>,
    observe: &mut Observer<'_>,
    directory: &Path,
) -> Result<(FileEntry, Content), WriteError> {
    let path = directory.join(files::MEMORY);
    let failed = || StoreError::at("write", &path);
    let file = files::create(&path).map_err(failed())?;
    let Some(base) = &new.base else {
        let mut image = FullImage::new(&file, new.memory.layout().pages()).map_err(failed())?;
        write_full(new.memory, candidates, &mut image, &path, observe)?;
        let digest = image.finish().map_err(failed())?;
        file.sync_all().map_err(failed())?;
        step(observe, Step::MemoryWritten)?;
        let size = new.memory.layout().size();
        return Ok((FileEntry { size, digest }, Content::Full));
    };
    let mut image = PackedImage::new(&file);
    let map = write_diff(new.memory, base.memory, candidates, &mut image, &path, observe)?;
    let (size, digest) = image.finish().map_err(failed())?;
    file.sync_all().map_err(failed())?;
    step(observe, Step::MemoryWritten)?;
    let map = write_file(directory, files::MAP, &[&map.encode()])?;
    step(observe, Step::MapWritten)?;
    let parent = base.parent.clone();
    Ok((FileEntry { size, digest }, Content::Diff { parent, map }))
}

fn write_full(
    memory: &dyn PageSource,
    candidates: &mut Candidates<'_>,
    image: &mut FullImage<'_>,
    path: &Path,
    observe: &mut Observer<'_>,
) -> Result<(), WriteError> {
    for_each_piece(memory, candidates, &mut |first, count| {
        let mut first = first;
        let end = first + count;
        while first < end {
            let count = FullImage::within_block(first, end - first);
            let place = image.pages(first, count);
            read(memory, first, place.map_err(StoreError::at("write", path))?)?;
            first += count;
        }
        step(observe, Step::PieceDone)
    })
}

fn write_diff(
    memory: &dyn PageSource,
    base: &dyn PageSource,
    candidates: &mut Candidates<'_>,
    image: &mut PackedImage<'_>,
    path: &Path,
    observe: &mut Observer<'_>,
) -> Result<PageMap, WriteError> {
    let mut map = PageMap::new(memory.layout().pages());
    let (mut ours, mut theirs) = (vec![0; BULK], vec![0; BULK]);
    for_each_piece(memory, candidates, &mut |first, count| {
        let bytes = bytes_of(first, count)?;
        let (ours, theirs) = (&mut ours[..bytes], &mut theirs[..bytes]);
        read(memory, first, ours)?;
        read(base, first, theirs)?;
        let pairs = ours.chunks(PAGE_SIZE).zip(theirs.chunks(PAGE_SIZE));
        for (page, (our, their)) in (first..).zip(pairs) {
            if our == their {
                continue;
            }
            if is_zero(our) {
                map.push(page, RunKind::Zero)?;
                continue;
            }
            map.push(page, RunKind::Data)?;
            image.push(our).map_err(StoreError::at("write", path))?;
        }
        step(observe, Step::PieceDone)
    })?;
    Ok(map)
}

/// Calls `piece` with the first page and the number of pages of each piece of the candidates: 1 MiB at most, in one region.
fn for_each_piece(
    memory: &dyn PageSource,
    candidates: &mut Candidates<'_>,
    piece: &mut dyn FnMut(u64, u64) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let layout = memory.layout();
    let (mut after, end) = (0, layout.pages());
    for range in candidates {
        if range.start < after || range.end < range.start || range.end > end {
            let found = range;
            return Err(WriteError::Candidates { found, after, end });
        }
        after = range.end;
        let mut first = range.start;
        while first < range.end {
            let count = layout.within_region(first, BULK_PAGES.min(range.end - first));
            piece(first, count)?;
            first += count;
        }
    }
    Ok(())
}

fn read(memory: &dyn PageSource, page: u64, buffer: &mut [u8]) -> Result<(), WriteError> {
    memory.read(page, buffer).map_err(|source| WriteError::Source { page, source })
}

fn bytes_of(page: u64, count: u64) -> Result<usize, WriteError> {
    usize::try_from(count * PAGE_BYTES)
        .map_err(|error| WriteError::Source { page, source: io::Error::other(error) })
}

#[cfg(test)]
mod tests;
