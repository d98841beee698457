//! The format of a layer file.
//!
//! ```text
//! 0         4096                                      data start
//! | header  | allocation map, two bits for each block | block 0 | block 1 | … | last block |
//!
//! header:   0        8         12      16          24         32
//!           | magic  | version | grain | disk size | checksum | zeroes up to 4096
//!
//! map:      block i is in byte i / 4, at bits 2 * (i % 4) and the one above: 00 absent, 01 data, 10 zero.
//!           It is filled up with zeroes to a multiple of 4096.
//! ```
//!
//! Numbers are little-endian. A block has its own place in the file, so the file is as long as the disk and sparse where
//! nothing was written. The checksum covers the bytes before it. It tells a damaged header from a good one; it does not
//! cover the map, which changes all the time, nor the data. Snapshots have digests of whole files for that.

use super::error::LayerError;
use super::{GRAIN, MAX_DISK};

pub(super) const MAGIC: [u8; 8] = *b"forkdlyr";
pub(super) const VERSION: u32 = 1;

/// The bytes of the header that mean something.
pub(super) const HEADER: usize = 32;

/// Where the map begins.
pub(super) const MAP_START: u64 = GRAIN as u64;

/// Two bits for each block.
pub(super) const BLOCKS_PER_BYTE: usize = 4;

const CHECKSUM_AT: usize = 24;

/// The size of a block as the header has it.
const GRAIN_FIELD: u32 = 4096;
const _: () = assert!(GRAIN_FIELD as usize == GRAIN);

/// Where things are in the layer of a disk of this size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    pub size: u64,
    pub blocks: usize,
    /// The length of the map in the file.
    pub map_bytes: usize,
    pub data_start: u64,
}

impl Geometry {
    pub fn of(size: u64) -> Result<Geometry, LayerError> {
        if size == 0 || size > MAX_DISK || !size.is_multiple_of(GRAIN as u64) {
            return Err(LayerError::Size { size });
        }
        let blocks = usize::try_from(size / GRAIN as u64).map_err(|_| LayerError::Size { size })?;
        let map_bytes = blocks.div_ceil(BLOCKS_PER_BYTE).next_multiple_of(GRAIN);
        Ok(Geometry { size, blocks, map_bytes, data_start: MAP_START + map_bytes as u64 })
    }

    pub fn file_length(&self) -> u64 {
        self.data_start + self.size
    }
}

pub(super) fn encode(geometry: &Geometry) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&GRAIN_FIELD.to_le_bytes());
    header[16..24].copy_from_slice(&geometry.size.to_le_bytes());
    let checksum = checksum(&header[..CHECKSUM_AT]);
    header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    header
}

pub(super) fn decode(header: &[u8; HEADER]) -> Result<Geometry, LayerError> {
    let magic: [u8; 8] = field(header, 0);
    if magic != MAGIC {
        return Err(LayerError::NotALayer { found: magic });
    }
    // The version comes before the checksum: it says what the checksum is and where.
    let version = u32::from_le_bytes(field(header, 8));
    if version != VERSION {
        return Err(LayerError::UnknownVersion { found: version });
    }
    let found = u64::from_le_bytes(field(header, CHECKSUM_AT));
    let computed = checksum(&header[..CHECKSUM_AT]);
    if found != computed {
        return Err(LayerError::Checksum { found, computed });
    }
    let grain = u32::from_le_bytes(field(header, 12));
    if grain != GRAIN_FIELD {
        return Err(LayerError::Grain { found: grain });
    }
    Geometry::of(u64::from_le_bytes(field(header, 16)))
}

fn field<const N: usize>(header: &[u8; HEADER], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}

/// FNV-1a with 64 bits. Each step can be undone, so one changed byte always changes the result.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_header_is_noticed() {
        let geometry = Geometry::of(10 << 30).unwrap();
        let good = encode(&geometry);
        assert_eq!(decode(&good).unwrap(), geometry);
        for bit in 0..HEADER * 8 {
            let mut header = good;
            header[bit / 8] ^= 1 << (bit % 8);
            let error = decode(&header).unwrap_err();
            match bit / 8 {
                0..8 => assert!(matches!(error, LayerError::NotALayer { .. }), "{error}"),
                8..12 => assert!(matches!(error, LayerError::UnknownVersion { .. }), "{error}"),
                _ => assert!(matches!(error, LayerError::Checksum { .. }), "{error}"),
            }
        }
    }

    #[test]
    fn impossible_values_are_refused_although_the_checksum_is_right() {
        let with = |at: usize, bytes: &[u8]| {
            let mut header = encode(&Geometry::of(4096).unwrap());
            header[at..at + bytes.len()].copy_from_slice(bytes);
            let sum = checksum(&header[..CHECKSUM_AT]);
            header[CHECKSUM_AT..].copy_from_slice(&sum.to_le_bytes());
            decode(&header).unwrap_err()
        };
        assert!(matches!(with(12, &512u32.to_le_bytes()), LayerError::Grain { found: 512 }));
        for size in [0, 1, 4095, 4097, MAX_DISK + 4096, u64::MAX] {
            let error = with(16, &size.to_le_bytes());
            assert!(matches!(error, LayerError::Size { .. }), "{size}: {error}");
        }
    }

    #[test]
    fn the_data_begins_after_the_map() {
        let geometry = Geometry::of(4096).unwrap();
        assert_eq!((geometry.blocks, geometry.map_bytes, geometry.data_start), (1, 4096, 8192));
        // 16384 blocks fill one page of the map.
        let geometry = Geometry::of(16385 * 4096).unwrap();
        assert_eq!((geometry.map_bytes, geometry.data_start), (8192, 12288));
        assert_eq!(geometry.file_length(), 12288 + 16385 * 4096);
    }
}
