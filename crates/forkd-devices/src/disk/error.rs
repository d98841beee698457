//! What can go wrong with a layer file, with a stack of layers, and with a request to the disk.

use std::io;

use super::{GRAIN, MAX_DISK, MAX_LAYERS, SECTOR, header};

/// The file is not a layer, or cannot become one.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("not a disk layer: it begins with {found:02x?}, not with {:02x?}", header::MAGIC)]
    NotALayer { found: [u8; 8] },
    #[error("a disk layer of version {found}; version {} is expected", header::VERSION)]
    UnknownVersion { found: u32 },
    #[error(
        "the header of the disk layer is damaged: its checksum is {computed:#018x}, the file says {found:#018x}"
    )]
    Checksum { found: u64, computed: u64 },
    #[error("a disk layer with blocks of {found} bytes; {GRAIN} are expected")]
    Grain { found: u32 },
    #[error("a disk of {size} bytes; a multiple of {GRAIN} is expected, from {GRAIN} to {MAX_DISK}")]
    Size { size: u64 },
    #[error("the file of the disk layer has {found} bytes; {expected} are expected")]
    Length { found: u64, expected: u64 },
    #[error("the allocation map of the disk layer gives block {block} a state that does not exist")]
    State { block: usize },
    #[error("the allocation map of the disk layer has entries after the last block, {last}")]
    BeyondEnd { last: usize },
    #[error("a new disk layer needs an empty file; this one has {length} bytes")]
    NotEmpty { length: u64 },
    #[error("cannot {action} of the disk layer")]
    Io { action: &'static str, source: io::Error },
}

/// The files do not make a disk.
#[derive(Debug, thiserror::Error)]
pub enum StackError {
    #[error("frozen layer {number} of the disk (1 is the oldest)")]
    Frozen { number: usize, source: LayerError },
    #[error("{which} is for a disk of {found} bytes; {expected} are expected")]
    Size { which: String, found: u64, expected: u64 },
    #[error("the base image has {base} bytes, more than the disk of {disk}")]
    BaseTooLarge { base: u64, disk: u64 },
    #[error("{found} frozen layers; the saved state expects {expected}")]
    LayerCount { found: usize, expected: u32 },
    #[error("{found} frozen layers; at most {MAX_LAYERS} are possible")]
    TooManyLayers { found: usize },
    #[error("no frozen layers {} to {}: there are {found}", layers.start + 1, layers.end)]
    NoSuchLayers { layers: std::ops::Range<usize>, found: usize },
    #[error("the saved state expects a base image, but there is no base image")]
    NoBase,
    #[error("there is a base image, and the saved state expects none")]
    UnexpectedBase,
    #[error("the top layer")]
    Top { source: LayerError },
    #[error("cannot read the size of the base image")]
    BaseMetadata { source: io::Error },
}

/// A request to the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("the top layer of the disk has no room left ({allocated} of {limit} bytes used)")]
    OutOfSpace { allocated: u64, limit: u64 },
    #[error("{length} bytes at {offset} are not on the disk of {size} bytes")]
    OutOfRange { offset: u64, length: u64, size: u64 },
    #[error("{length} bytes at {offset} do not begin and end at a multiple of {SECTOR}")]
    Misaligned { offset: u64, length: u64 },
    /// The kernel reports a failed writeback once and then forgets the pages, so a later sync that succeeds says nothing.
    #[error("an earlier sync of the disk failed; what was written before it may be lost")]
    SyncLost,
    #[error("cannot {action}")]
    Io { action: &'static str, source: io::Error },
}

/// Whether the host has no room left, by whatever limit.
pub(super) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_host_is_told_from_a_broken_one() {
        use rustix::io::Errno;
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            assert!(is_out_of_space(&errno.into()), "{errno:?}");
        }
        assert!(!is_out_of_space(&Errno::IO.into()));
    }
}
