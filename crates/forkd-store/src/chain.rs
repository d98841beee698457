//! A snapshot with everything it stands on: from the full base to the head.

use std::io;
use std::os::unix::fs::FileExt;

use crate::digest::Digest;
use crate::layout::{Layout, PAGE_BYTES, PAGE_SIZE};
use crate::manifest::{Manifest, SealedManifest};
use crate::overlay::{self, Extent, Origin};
use crate::page::PageSource;
use crate::snapshot::{OpenError, Snapshot, label, read_manifest, read_state};
use crate::snapshot_files::SnapshotFiles;
use crate::state::VmState;
use crate::store::{Store, StoreError};
use crate::tag::Tag;

/// The most snapshots in a chain, base and head included.
///
/// A chain goes to a VM process in one message, and a message carries 253 descriptors at most. Each snapshot takes three
/// (manifest, memory, map) and the head one more for its state. The rest is for disk layers and devices.
pub const MAX_CHAIN: usize = 48;

/// `SCM_MAX_FD` of the kernel.
const MAX_DESCRIPTORS: usize = 253;
const _: () = assert!(3 * MAX_CHAIN < MAX_DESCRIPTORS);

/// A chain each of whose snapshots is the parent that the next one means.
#[derive(Debug)]
pub struct Chain {
    /// From the base to the head, at least one.
    snapshots: Vec<Snapshot>,
    /// The head's.
    state: VmState,
    extents: Vec<Extent>,
}

/// A chain cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error(transparent)]
    Snapshot(#[from] OpenError),
    #[error(transparent)]
    Store(StoreError),
    #[error("there is no snapshot {tag} in {store}")]
    Missing { tag: Tag, store: String },
    #[error(
        "snapshot {child} needs its parent{}, which is not in {store}: the manifest of that has the digest {digest}",
        named(parent)
    )]
    MissingParent { child: Tag, parent: Option<Tag>, digest: Digest, store: String },
    #[error(
        "snapshot {child} needs another parent than {parent}: the manifest of that has the digest {found}, expected {expected}"
    )]
    WrongParent { child: String, parent: String, found: Digest, expected: Digest },
    #[error("snapshot {child} has other memory regions than its parent {parent}")]
    OtherMemory { child: String, parent: String },
    #[error("snapshot {tag} is based on {MAX_CHAIN} others or more; write a full snapshot instead")]
    TooDeep { tag: Tag },
    #[error("a chain of {found} snapshots, expected 1 to {MAX_CHAIN}")]
    Count { found: usize },
    #[error("the chain begins with {tag}, a diff, expected a full snapshot")]
    NoBase { tag: String },
    #[error("snapshot {tag} is full, expected a diff of {below}, which is below it in the chain")]
    NoDiff { tag: String, below: String },
}

fn named(parent: &Option<Tag>) -> String {
    parent.as_ref().map(|tag| format!(" {tag}")).unwrap_or_default()
}

impl Chain {
    /// Loads the snapshot `tag` and its ancestors.
    pub fn load(store: &Store, tag: &Tag) -> Result<Chain, ChainError> {
        Chain::open(store.open_chain(tag)?)
    }

    /// Checks the files of a chain, the base first and the head last, and that they are a chain. Needs nothing but the
    /// files, and believes nothing about them. What is quick comes first, so what cannot be a chain is refused before
    /// gigabytes are hashed. Memory in frames is checked when it is read, by [`Chain::assemble`]; that of version 1 is checked here.
    pub fn open(mut files: Vec<SnapshotFiles>) -> Result<Chain, ChainError> {
        let count = files.len();
        let Some(head) = files.last_mut().filter(|_| count <= MAX_CHAIN) else {
            return Err(ChainError::Count { found: count });
        };
        let (head_name, state) = (head.name.clone(), head.state.take());
        let manifests = read_manifests(&files)?;
        // As many as there are files.
        let state = read_state(&head_name, state, &manifests[count - 1].manifest.state)?;
        let mut snapshots = Vec::with_capacity(count);
        for (sealed, files) in manifests.into_iter().zip(files) {
            snapshots.push(Snapshot::new(sealed, files)?);
        }
        let mut extents = Vec::new();
        for (layer, snapshot) in snapshots.iter().enumerate() {
            let pages = snapshot.manifest().layout.pages();
            extents = match snapshot.map() {
                None => overlay::sparse(snapshot.memory_file(), pages),
                Some(map) if layer == 0 => overlay::over(&overlay::zero(pages), layer, map.runs()),
                Some(map) => overlay::over(&extents, layer, map.runs()),
            };
        }
        for snapshot in &snapshots {
            snapshot.verify_whole_memory()?;
        }
        Ok(Chain { snapshots, state, extents })
    }

    /// From the base to the head.
    pub fn snapshots(&self) -> &[Snapshot] {
        &self.snapshots
    }

    /// The snapshot that was asked for: its requirements, its disk layers.
    pub fn head(&self) -> &Snapshot {
        // There is at least one.
        &self.snapshots[self.snapshots.len() - 1]
    }

    /// The head's manifest.
    pub fn manifest(&self) -> &Manifest {
        self.head().manifest()
    }

    /// The head's VM state.
    pub fn state(&self) -> &VmState {
        &self.state
    }

    pub(crate) fn extents(&self) -> &[Extent] {
        &self.extents
    }
}

/// Reads the manifests and checks that each is the parent that the next one means.
fn read_manifests(files: &[SnapshotFiles]) -> Result<Vec<SealedManifest>, ChainError> {
    let mut manifests: Vec<SealedManifest> = Vec::with_capacity(files.len());
    for (index, snapshot) in files.iter().enumerate() {
        let sealed = read_manifest(&snapshot.name, &snapshot.manifest)?.sealed;
        let tag = label(&snapshot.name);
        match (manifests.last(), sealed.manifest.parent) {
            (None, None) => {}
            (None, Some(_)) => return Err(ChainError::NoBase { tag }),
            (Some(_), None) => return Err(ChainError::NoDiff { tag, below: label(&files[index - 1].name) }),
            (Some(below), Some(_)) => {
                check_parent(&tag, &sealed.manifest, &label(&files[index - 1].name), below)?
            }
        }
        manifests.push(sealed);
    }
    Ok(manifests)
}

/// Checks that a diff means this parent, and that both have the same memory. Their names are for messages.
pub(crate) fn check_parent(
    child_name: &str,
    child: &Manifest,
    parent_name: &str,
    parent: &SealedManifest,
) -> Result<(), ChainError> {
    let (child_name, parent_name) = (child_name.to_owned(), parent_name.to_owned());
    if let Some(expected) = child.parent
        && expected != parent.digest
    {
        let found = parent.digest;
        return Err(ChainError::WrongParent { child: child_name, parent: parent_name, found, expected });
    }
    if child.layout != parent.manifest.layout {
        return Err(ChainError::OtherMemory { child: child_name, parent: parent_name });
    }
    Ok(())
}

/// The chain's memory, read from its files: what a new diff can be compared with. Frames are not checked here. A page of a damaged one
/// that differs only because of the damage goes into the diff, and one that is equal only because of it cannot be loaded, since the
/// frame is checked then.
impl PageSource for Chain {
    fn layout(&self) -> &Layout {
        &self.manifest().layout
    }

    fn read(&self, first: u64, buffer: &mut [u8]) -> io::Result<()> {
        let (mut first, mut buffer) = (first, buffer);
        while !buffer.is_empty() {
            let index = self.extents.partition_point(|extent| extent.end() <= first);
            let Some(extent) = self.extents.get(index) else {
                return Err(io::Error::other("a page behind the last"));
            };
            let extent = extent.skip(first - extent.first);
            let wanted = (buffer.len().div_ceil(PAGE_SIZE)) as u64;
            let count = extent.count.min(wanted);
            let bytes = usize::try_from(count * PAGE_BYTES).map_err(io::Error::other)?;
            let length = bytes.min(buffer.len());
            let (now, later) = buffer.split_at_mut(length);
            match extent.origin {
                Origin::Zero => now.fill(0),
                Origin::Layer { layer, page } => {
                    self.snapshots[layer].memory_file().read_exact_at(now, page * PAGE_BYTES)?
                }
            }
            buffer = later;
            first += count;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
