//! Guest memory as the store sees it: regions of guest addresses, and their pages numbered one after another.
//!
//! ```text
//! guest addresses   0 ┌────────┐ 3 GiB     4 GiB ┌──────────────┐
//!                     │ region │      (hole)     │    region    │
//!                     └────────┘                 └──────────────┘
//! page numbers        0 …  n-1                   n      …     m-1
//! ```

use serde::{Deserialize, Serialize};

/// Bytes in a page. Everything here counts in these, also where the memory itself is in huge pages.
pub const PAGE_SIZE: usize = 4096;
/// The same as a file offset.
pub(crate) const PAGE_BYTES: u64 = 4096;
/// The largest memory of a VM, so that sums cannot overflow and a damaged manifest cannot ask for more than makes sense.
pub const MAX_MEMORY: u64 = 4 << 40;
/// The largest number of regions.
pub const MAX_REGIONS: usize = 64;

/// A piece of guest memory without holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// Guest physical address.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

/// All regions of a VM, by ascending address. As data it is the list of regions, checked when it is read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Region>", into = "Vec<Region>")]
pub struct Layout {
    regions: Vec<Region>,
    /// For each region, the number of the page after its last.
    ends: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("{0} memory regions; 1 to {MAX_REGIONS} are possible")]
    Count(usize),
    #[error("the memory region at {:#x} with {:#x} bytes is not made of whole pages of {PAGE_SIZE} bytes", .0.address, .0.length)]
    Unaligned(Region),
    #[error("the memory region at {:#x} begins before the one below it ends", .0.address)]
    Overlap(Region),
    #[error("more than {} GiB of memory, or memory that ends past the last address", MAX_MEMORY >> 30)]
    TooLarge,
}

impl Layout {
    /// Checks the regions: whole pages, ascending, apart from each other.
    pub fn new(regions: Vec<Region>) -> Result<Layout, LayoutError> {
        if !(1..=MAX_REGIONS).contains(&regions.len()) {
            return Err(LayoutError::Count(regions.len()));
        }
        let mut ends = Vec::with_capacity(regions.len());
        let (mut free_address, mut pages) = (0, 0);
        for region in &regions {
            let aligned =
                region.address.is_multiple_of(PAGE_BYTES) && region.length.is_multiple_of(PAGE_BYTES);
            if !aligned || region.length == 0 {
                return Err(LayoutError::Unaligned(*region));
            }
            if region.address < free_address {
                return Err(LayoutError::Overlap(*region));
            }
            free_address = region.address.checked_add(region.length).ok_or(LayoutError::TooLarge)?;
            // Cannot overflow: both are numbers of pages.
            pages += region.length / PAGE_BYTES;
            if pages > MAX_MEMORY / PAGE_BYTES {
                return Err(LayoutError::TooLarge);
            }
            ends.push(pages);
        }
        Ok(Layout { regions, ends })
    }

    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The number of pages.
    pub fn pages(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.pages() * PAGE_BYTES
    }

    /// The region that a page is in, and the page's offset there in bytes.
    pub fn locate(&self, page: u64) -> Option<(usize, u64)> {
        let region = self.ends.partition_point(|&end| end <= page);
        let end = self.ends.get(region)?;
        let begin = end - self.regions[region].length / PAGE_BYTES;
        Some((region, (page - begin) * PAGE_BYTES))
    }

    /// The page that a guest address is in.
    pub fn page_at(&self, address: u64) -> Option<u64> {
        let region = self.regions.partition_point(|region| region.address <= address).checked_sub(1)?;
        let (Region { address: begin, length }, end) = (self.regions[region], self.ends[region]);
        let offset = (address - begin) / PAGE_BYTES;
        let pages = length / PAGE_BYTES;
        (offset < pages).then(|| end - pages + offset)
    }

    /// How many of `count` pages from `first` on are in the same region. At least one, if `first` exists and `count` is
    /// not zero.
    pub(crate) fn within_region(&self, first: u64, count: u64) -> u64 {
        let region = self.ends.partition_point(|&end| end <= first);
        let end = self.ends.get(region).copied().unwrap_or(first);
        count.min(end - first)
    }
}

impl TryFrom<Vec<Region>> for Layout {
    type Error = LayoutError;

    fn try_from(regions: Vec<Region>) -> Result<Layout, LayoutError> {
        Layout::new(regions)
    }
}

impl From<Layout> for Vec<Region> {
    fn from(layout: Layout) -> Vec<Region> {
        layout.regions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(regions: &[(u64, u64)]) -> Result<Layout, LayoutError> {
        let regions = regions.iter();
        Layout::new(regions.map(|&(address, length)| Region { address, length }).collect())
    }

    #[test]
    fn pages_are_numbered_across_the_hole() {
        let layout = layout(&[(0, 0x3000), (0x1_0000_0000, 0x2000)]).unwrap();
        assert_eq!((layout.pages(), layout.size()), (5, 0x5000));
        let places: Vec<_> = (0..6).map(|page| layout.locate(page)).collect();
        assert_eq!(
            places,
            [Some((0, 0)), Some((0, 0x1000)), Some((0, 0x2000)), Some((1, 0)), Some((1, 0x1000)), None]
        );
        let pages = [0, 0xfff, 0x2abc, 0x3000, 0xffff_ffff, 0x1_0000_0000, 0x1_0000_1fff, 0x1_0000_2000]
            .map(|address| layout.page_at(address));
        assert_eq!(pages, [Some(0), Some(0), Some(2), None, None, Some(3), Some(4), None]);
        assert_eq!(layout.within_region(1, 10), 2);
        assert_eq!(layout.within_region(3, 1), 1);
        assert_eq!(layout.within_region(5, 7), 0);
    }

    #[test]
    fn as_data_it_is_its_regions() {
        let layout = layout(&[(0, 0x3000), (0x1_0000_0000, 0x2000)]).unwrap();
        let text = serde_json::to_string(&layout).unwrap();
        assert!(text.starts_with(r#"[{"address":0,"length":12288},"#), "{text}");
        assert_eq!(serde_json::from_str::<Layout>(&text).unwrap(), layout);
        assert!(serde_json::from_str::<Layout>(r#"[{"address":1,"length":4096}]"#).is_err());
    }

    #[test]
    fn bad_regions_are_refused_by_name() {
        assert_eq!(layout(&[]), Err(LayoutError::Count(0)));
        let many: Vec<_> = (0..65).map(|i| (i * 0x1000, 0x1000)).collect();
        assert_eq!(layout(&many), Err(LayoutError::Count(65)));
        for region in [(1, 0x1000), (0, 0x1001), (0, 0)] {
            assert!(matches!(layout(&[region]), Err(LayoutError::Unaligned(_))), "{region:?}");
        }
        assert!(matches!(layout(&[(0, 0x2000), (0x1000, 0x1000)]), Err(LayoutError::Overlap(_))));
        assert!(matches!(layout(&[(0x2000, 0x1000), (0, 0x1000)]), Err(LayoutError::Overlap(_))));
        assert_eq!(layout(&[(u64::MAX - 0xfff, 0x1000)]), Err(LayoutError::TooLarge));
        assert_eq!(layout(&[(0, MAX_MEMORY + 0x1000)]), Err(LayoutError::TooLarge));
        assert!(layout(&[(0, MAX_MEMORY)]).is_ok());
    }
}
