//! Writing a snapshot: all of it appears at once, or none of it.
//!
//! ```text
//!   Store::draft            .tmp-…/   empty files, locked
//!   write_contents          state.bin ─▶ memory.bin ─▶ memory.runs      (each synced before the next is begun)
//!   SettledDraft::publish   memory.map ─▶ local.json ─▶ manifest.json ─▶ sync directory ─▶ rename to TAG ─▶ sync store
//!                                                                                        │
//!   killed:                                   nothing there; the sweep removes the rest ◀┴▶ a whole snapshot
//! ```
//!
//! The first and the last belong to the owner of the store, who has its paths; the middle to the process that has the
//! memory, and gets descriptors only. [`Store::write`] does all three for a process that is both.

use std::io;
use std::ops::{ControlFlow, Range};

use crate::chain::{ChainError, MAX_CHAIN};
use crate::contents::{NewContents, failed, write_contents};
use crate::digest::Digest;
use crate::draft::{Description, DiskLayer};
use crate::files;
use crate::local::LocalError;
use crate::manifest::{About, Cpu, Link, ManifestError};
use crate::page::PageSource;
use crate::page_map::PageMapError;
use crate::remove::RemoveError;
use crate::state::{MAX_STATE, StateError};
use crate::store::{Store, StoreError, Stored};
use crate::tag::Tag;

/// What a snapshot is made from, for [`Store::write`].
#[expect(missing_debug_implementations, reason = "a source of pages has nothing to show")]
pub struct NewSnapshot<'a> {
    pub tag: Tag,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// The features in any order.
    pub cpu: Cpu,
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
    RunsWritten,
    /// Its frames are hashed, and the map is written.
    MemorySealed,
    ManifestWritten,
    DirectorySynced,
    /// It has its name. From here on the answer does not matter.
    Published,
}

/// Told about each step; may stop the writing there.
pub type Observer<'a> = dyn FnMut(Step) -> ControlFlow<()> + 'a;

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
    #[error("snapshot {tag} was removed or replaced during the write")]
    Replaced { tag: Tag },
    #[error(transparent)]
    Dependents(#[from] Box<RemoveError>),
    #[error("the memory has other regions than its base")]
    OtherMemory,
    #[error("the VM state has {found} bytes, expected at most {MAX_STATE} with its header")]
    StateTooLarge { found: usize },
    #[error("cannot write the description")]
    Description(#[source] ManifestError),
    #[error("candidates {found:?}, expected pages from {after} on and at most {end}")]
    Candidates { found: Range<u64>, after: u64, end: u64 },
    #[error("cannot read the memory from page {page} on")]
    Source { page: u64, source: io::Error },
    #[error("cannot write {name}")]
    File { name: &'static str, source: io::Error },
    #[error("{name} has {found} bytes, expected the {expected} that were announced")]
    Size { name: &'static str, found: u64, expected: u64 },
    #[error("{name} has {found} bytes, expected at most {limit}")]
    TooLong { name: &'static str, found: u64, limit: u64 },
    #[error("the list of pages cannot be used")]
    Map(#[from] PageMapError),
    #[error("pages of a full snapshot are marked as zeroed")]
    ZeroRuns,
    #[error("the VM state cannot be used")]
    State(#[source] StateError),
    #[error("cannot write its local metadata")]
    Local(#[source] LocalError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("stopped on request")]
    Stopped,
}

impl Store {
    /// Writes a snapshot, in this process and on this thread. `candidates` and `observe` are as for [`write_contents`].
    pub fn write(
        &self,
        new: NewSnapshot<'_>,
        candidates: &mut dyn Iterator<Item = Range<u64>>,
        observe: &mut Observer<'_>,
    ) -> Result<Stored, WriteError> {
        let mut description = Description {
            created_unix_ms: new.created_unix_ms,
            cpu: new.cpu,
            layout: new.memory.layout().clone(),
            about: About::new(),
            local: About::new(),
            disk_layers: new.disk_layers,
        };
        let (parent, base) = new.base.map(|base| (base.parent, base.memory)).unzip();
        let contents =
            NewContents { state_version: new.state_version, state: new.state, memory: new.memory, base };
        // What can only fail later is refused before anything is written.
        description.check()?;
        contents.check()?;
        let draft = self.draft(&new.tag, parent.as_ref())?;
        draft.check_memory(&description.layout)?;
        step(observe, Step::Begun)?;
        let files = draft.new_files().map_err(failed(files::MEMORY))?;
        write_contents(files, &contents, candidates, observe)?;
        let draft = draft.settle()?;
        let hashed = draft.unhashed()?.hash()?;
        draft.publish_in_steps(description, hashed, observe)
    }
}

pub(crate) fn step(observe: &mut Observer<'_>, step: Step) -> Result<(), WriteError> {
    match observe(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(WriteError::Stopped),
    }
}

#[cfg(test)]
mod tests;
