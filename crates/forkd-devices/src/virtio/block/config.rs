//! The configuration space of the block device.
//!
//! ```text
//!  0 capacity u64       20 block size u32              32 cache mode u8      44 discard alignment u32
//!  8 largest segment    24 physical block exponent u8  34 queues u16         48 most sectors to zero u32
//! 12 most segments      26 best size u16               36 most to discard    52 most ranges to zero u32
//! 16 geometry           28 best large size u32         40 most ranges        56 zeroing may unmap u8
//! ```

use super::{MAX_SEGMENT, MAX_SEGMENTS};
use crate::disk::{GRAIN, SECTOR};

const LENGTH: usize = 60;

/// The most sectors in one range to discard or zero: 2 GiB. Linux splits what is larger.
pub(super) const MAX_RANGE_SECTORS: u32 = 1 << 22;

/// The most ranges in one request to discard or zero.
pub(super) const MAX_RANGES: u32 = 16;

/// Sectors in a block of the disk. Partial blocks are copied up from below, so the guest had better write whole ones.
const SECTORS_PER_BLOCK: u16 = 8;
const BLOCK_EXPONENT: u8 = 3;
const SECTOR_FIELD: u32 = 512;
const _: () = assert!(
    SECTOR_FIELD as usize == SECTOR
        && SECTORS_PER_BLOCK as usize * SECTOR == GRAIN
        && SECTORS_PER_BLOCK == 1 << BLOCK_EXPONENT
);

pub(super) fn encode(size: u64) -> [u8; LENGTH] {
    let mut config = [0; LENGTH];
    let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(size / SECTOR as u64).to_le_bytes());
    put(8, &MAX_SEGMENT.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    put(20, &SECTOR_FIELD.to_le_bytes());
    put(24, &[BLOCK_EXPONENT]);
    put(26, &SECTORS_PER_BLOCK.to_le_bytes());
    put(36, &MAX_RANGE_SECTORS.to_le_bytes());
    put(40, &MAX_RANGES.to_le_bytes());
    put(44, &u32::from(SECTORS_PER_BLOCK).to_le_bytes());
    put(48, &MAX_RANGE_SECTORS.to_le_bytes());
    put(52, &MAX_RANGES.to_le_bytes());
    put(56, &[1]);
    config
}
