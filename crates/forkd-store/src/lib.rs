//! Snapshots on disk: what a frozen VM is, as files that can be checked, and the chains that diffs form.
//!
//! A store is a directory; a snapshot is a directory in it, named by its tag.
//!
//! ```text
//! STORE/
//!   base/            manifest.json  state.bin  memory.bin  memory.map     full: stands on its own
//!                    local.json                                           what only this store knows of it
//!                    prefault.json                                        later, and no part of it: what children use first
//!   base-numpy/      manifest.json  state.bin  memory.bin  memory.map     diff: only what differs from its parent
//!                    local.json
//!   .tmp-Xc4Lw9/     being written or removed, or left by a process that was killed
//!
//!      base  ◀── base-numpy ◀── …        a manifest names its parent by the digest of the parent's manifest
//! ```
//!
//! A manifest and the files that it lists are the same on every host, under any name. Version 1, in which names were part of the
//! manifest and a full snapshot had no map, is read for good.
//!
//! This crate knows nothing of KVM. The VM's state is bytes, guest memory is pages behind [`PageSource`] and
//! [`PageSink`], and disk layers are references. Nothing that is read from a snapshot is used before it was checked: small files as a
//! whole, memory frame by frame (`frame.rs`).
//!
//! Paths are known only to the owner of a store. The process that holds or gets a VM's memory has descriptors:
//!
//! ```text
//!             owner: paths, names, locks                        process: open files only
//!   writing   Store::draft ──────────── NewFiles ────────────▶ write_contents
//!             Draft::settle ─▶ SettledDraft::publish ◀─────────┘
//!   reading   Store::open_chain ─────── SnapshotFiles … ─────▶ Chain::open ─▶ Chain::assemble
//! ```
//!
//! - Writing: `write.rs` has the order of the steps; [`Store::write`] does both halves in one process.
//! - Reading: [`Chain::load`] does both halves. The depth of a chain is paid for here, once, and by no child.
//! - From elsewhere: [`Store::receive`]; disks travel as a [`PackedFile`].
//! - Compacting: `compact.rs` makes a diff a full snapshot, in its place.
//! - Verifying: `verify.rs` reads every byte, also what a load does not use.
//! - Sealing: `seal.rs`. What was sealed is not hashed as a whole again.
//! - Formats: [`Manifest`], [`Local`], [`StateHeader`], [`PageMap`], each drawn in its own file.

mod ancestry;
mod assemble;
mod chain;
mod checked;
mod compact;
mod contents;
mod data_ranges;
mod digest;
mod draft;
mod files;
mod frame;
mod image;
mod image_digest;
mod layout;
mod local;
mod manifest;
mod manifest_file;
mod manifest_v1;
mod overlay;
mod page;
mod page_map;
mod parallel;
mod prefault;
mod pushed;
mod receive;
mod remove;
mod seal;
mod side_file;
mod snapshot;
mod snapshot_files;
mod sparse_file;
mod stamp;
mod state;
mod store;
mod tag;
mod temporary;
mod verify;
mod write;

#[cfg(test)]
mod testing;

pub use assemble::AssembleError;
pub use chain::{Chain, ChainError, MAX_CHAIN};
pub use compact::CompactError;
pub use contents::{NewContents, NewFiles, write_contents};
pub use digest::{Digest, DigestError};
pub use draft::{Description, DiskLayer, Draft};
pub use files::link_or_copy;
pub use layout::{Layout, LayoutError, MAX_MEMORY, MAX_REGIONS, PAGE_SIZE, Region};
pub use local::{Local, LocalError};
pub use manifest::{
    About, Content, Cpu, FileEntry, LayerEntry, Link, Manifest, ManifestError, SealedManifest,
};
pub use page::{PageSink, PageSource};
pub use page_map::{PageMap, PageMapError, Run, RunKind};
pub use prefault::{KeepError, Kept};
pub use receive::{ReceiveError, ReceivedFiles, check_state, memory_frames};
pub use remove::RemoveError;
pub use seal::{Hashed, SettledDraft, Unhashed};
pub use snapshot::{OpenError, RequirementError, Snapshot};
pub use snapshot_files::SnapshotFiles;
pub use sparse_file::{PackedFile, SparseError};
pub use stamp::Stamp;
pub use state::{MAX_STATE, StateError, StateHeader, VmState};
pub use store::{Listed, Store, StoreError, Stored};
pub use tag::{Tag, TagError};
pub use verify::{IsCancelled, VerifyError};
pub use write::{Base, NewSnapshot, Observer, Step, WriteError};
