//! Which guest addresses are RAM.
//!
//! ```text
//! 0                    3 GiB            4 GiB
//! | RAM, first part     | devices        | RAM, the rest        |
//! ```

use vm_memory::GuestAddress;

/// Where RAM stops below 4 GiB. Above it are the devices, the interrupt controllers and KVM's own pages.
const HOLE_START: u64 = 3 << 30;
const HOLE_END: u64 = 4 << 30;

/// The least memory that any guest boots in, and the most that page tables of four levels reach with room to spare.
const MIN_SIZE: u64 = 64 << 10;
const MAX_SIZE: u64 = 16 << 40;

/// A run of guest addresses that are RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub start: GuestAddress,
    pub len: u64,
}

/// The guest's RAM: one region, or two with the hole between them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    regions: Vec<Region>,
}

#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("guest memory is a multiple of 4 KiB from 64 KiB to 16 TiB, not {0} bytes")]
    Size(u64),
}

impl Layout {
    /// The layout of this much RAM.
    pub fn new(size: u64) -> Result<Layout, LayoutError> {
        if !(MIN_SIZE..=MAX_SIZE).contains(&size) || !size.is_multiple_of(4096) {
            return Err(LayoutError::Size(size));
        }
        let low = size.min(HOLE_START);
        let mut regions = vec![Region { start: GuestAddress(0), len: low }];
        if size > low {
            regions.push(Region { start: GuestAddress(HOLE_END), len: size - low });
        }
        Ok(Layout { regions })
    }

    /// The regions in the order of their addresses.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// All RAM, in bytes.
    pub fn size(&self) -> u64 {
        self.regions.iter().map(|region| region.len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regions(size: u64) -> Vec<(u64, u64)> {
        Layout::new(size).unwrap().regions().iter().map(|region| (region.start.0, region.len)).collect()
    }

    #[test]
    fn the_hole_below_four_gib_is_left_out() {
        assert_eq!(regions(512 << 20), [(0, 512 << 20)]);
        assert_eq!(regions(3 << 30), [(0, 3 << 30)]);
        assert_eq!(regions((3 << 30) + 4096), [(0, 3 << 30), (4 << 30, 4096)]);
        assert_eq!(regions(300 << 30), [(0, 3 << 30), (4 << 30, 297 << 30)]);
        assert_eq!(Layout::new(8 << 30).unwrap().size(), 8 << 30);
    }

    #[test]
    fn odd_sizes_are_refused() {
        for size in [0, 4096, (64 << 20) + 1, u64::MAX, MAX_SIZE + 4096] {
            assert!(Layout::new(size).is_err(), "{size}");
        }
    }
}
