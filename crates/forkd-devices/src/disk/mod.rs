//! The layered disk: the block device of a VM, made of files that VMs share and one that is its own.
//!
//! ```text
//!                write_at, discard, write_zeroes        read_at falls through what is absent
//!                             │                                      │
//!   top layer       . . D . Z . . . D .      one VM writes it        │
//!   frozen layer n  . D D . . . . . . .  ┐                           │
//!   …                                    ├── shared, never written ──┤
//!   frozen layer 1  D D . . D . . . . .  ┘                           │
//!   base            a raw image, e.g. ext4; zeroes beyond its end    ▼
//! ```
//!
//! A block of 4 KiB is absent in a layer (`.`: look below), holds data (`D`) or is zero (`Z`: discarded or zeroed, so that
//! the parent's data does not shine through). [`LayeredDisk::freeze_top`] makes the top layer a frozen one under a new, empty
//! top; both sides of a branch continue from there, each with its own top. [`merge`] makes one layer of several, so that a disk
//! that is branched again and again does not get deeper and deeper.
//!
//! Only descriptors come in here, no paths. `header` has the format of a layer file.

mod error;
mod header;
mod layer;
mod layered;
mod map;
mod merge;
#[cfg(test)]
mod oracle;
mod stack;

pub use error::{DiskError, LayerError, StackError};
pub use layer::Layer;
pub use layered::{Frozen, LayeredDisk, NewTop};
pub use merge::{MergeError, merge};
pub use stack::{DiskState, LayerStack, MAX_LAYERS};

/// The size of a block, the unit in which layers hold data.
pub const GRAIN: usize = 4096;

/// Offsets and lengths of a disk are multiples of this.
pub const SECTOR: usize = 512;

/// The largest disk. Its allocation map takes 256 MiB.
pub const MAX_DISK: u64 = 4 << 40;
