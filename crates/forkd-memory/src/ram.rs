//! Guest RAM as the rest of the VMM uses it.

#![expect(unsafe_code, reason = "vm_memory is told about mappings that it did not make")]

use std::io;

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap};

use crate::layout::Layout;
use crate::mapping;

/// All RAM of one guest: mapped private, so that fork(2) forks it. After a fork the value in the child refers to the child's
/// own copy, at the same addresses.
#[derive(Debug, Clone)]
pub struct GuestRam {
    layout: Layout,
    memory: GuestMemoryMmap,
}

/// One region as KVM wants to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RamRegion {
    pub guest: GuestAddress,
    pub host: u64,
    pub len: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum RamError {
    #[error("cannot map {size} bytes of guest memory")]
    Map { size: u64, source: io::Error },
    #[error("guest memory of {size} bytes: {reason}")]
    Regions { size: u64, reason: String },
}

impl GuestRam {
    /// Maps RAM of zeroes, which stays mapped as long as the process lives.
    pub fn allocate(layout: Layout) -> Result<GuestRam, RamError> {
        let size = layout.size();
        let failed = |source| RamError::Map { size, source };
        let odd = |reason: &dyn std::fmt::Display| RamError::Regions { size, reason: reason.to_string() };
        let mut regions = Vec::new();
        for region in layout.regions() {
            let len = usize::try_from(region.len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
            let address = mapping::map_private(len).map_err(failed)?;
            // SAFETY: `map_private` has mapped this many bytes at this address, readable and writable, for ever.
            let builder = unsafe { MmapRegionBuilder::new(len).with_raw_mmap_pointer(address) };
            let mapped = builder.build().map_err(|error| odd(&error))?;
            regions.push(
                GuestRegionMmap::new(mapped, region.start).ok_or_else(|| odd(&"a region wraps around"))?,
            );
        }
        let memory = GuestMemoryMmap::from_regions(regions).map_err(|error| odd(&error))?;
        Ok(GuestRam { layout, memory })
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// For reading and writing.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// For KVM.
    pub fn regions(&self) -> impl Iterator<Item = RamRegion> {
        self.memory.iter().map(|region| RamRegion {
            guest: region.start_addr(),
            host: region.as_ptr().addr() as u64,
            len: region.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_memory::Bytes;

    #[test]
    fn both_sides_of_the_hole_are_there() {
        let ram = GuestRam::allocate(Layout::new((3 << 30) + (64 << 20)).unwrap()).unwrap();
        let memory = ram.memory();
        let inside = [0, (3 << 30) - 8, 4 << 30, (4 << 30) + (64 << 20) - 8];
        for address in inside {
            assert_eq!(memory.read_obj::<u64>(GuestAddress(address)).unwrap(), 0);
            memory.write_obj(address + 1, GuestAddress(address)).unwrap();
        }
        for address in inside {
            assert_eq!(memory.read_obj::<u64>(GuestAddress(address)).unwrap(), address + 1);
        }
        for outside in [3 << 30, (4 << 30) - 8, (4 << 30) + (64 << 20)] {
            assert!(memory.read_obj::<u64>(GuestAddress(outside)).is_err(), "{outside:#x}");
        }
        let regions: Vec<_> = ram.regions().map(|region| (region.guest.0, region.len)).collect();
        assert_eq!(regions, [(0, 3 << 30), (4 << 30, 64 << 20)]);
    }
}
