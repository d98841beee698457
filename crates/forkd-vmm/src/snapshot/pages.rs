//! Guest RAM as the store's pages: numbered one after another, across the hole below 4 GiB.

use std::io;
use std::iter::Peekable;
use std::ops::Range;

use forkd_memory::GuestRam;
use forkd_store::{Layout, LayoutError, PAGE_SIZE, PageSink, PageSource, Region};
use vm_memory::{Bytes, GuestAddress};

const PAGE_BYTES: u64 = PAGE_SIZE as u64;

/// The store's view of guest RAM.
pub struct RamPages<'a> {
    ram: &'a GuestRam,
    layout: Layout,
}

impl<'a> RamPages<'a> {
    pub fn new(ram: &'a GuestRam) -> Result<RamPages<'a>, LayoutError> {
        Ok(RamPages { ram, layout: layout(ram.layout())? })
    }

    /// Where a page is in the guest.
    fn address(&self, page: u64) -> io::Result<GuestAddress> {
        let mut first = 0;
        for region in self.layout.regions() {
            let pages = region.length / PAGE_BYTES;
            if page < first + pages {
                return Ok(GuestAddress(region.address + (page - first) * PAGE_BYTES));
            }
            first += pages;
        }
        Err(io::Error::other("a page behind the last"))
    }
}

/// The regions of guest RAM as the store describes them.
pub fn layout(layout: &forkd_memory::Layout) -> Result<Layout, LayoutError> {
    let region = |region: &forkd_memory::Region| Region { address: region.start.0, length: region.len };
    Layout::new(layout.regions().iter().map(region).collect())
}

impl PageSource for RamPages<'_> {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn read(&self, first: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.ram.memory().read_slice(buffer, self.address(first)?).map_err(io::Error::other)
    }
}

impl PageSink for RamPages<'_> {
    fn write(&self, first: u64, pages: &[u8]) -> io::Result<()> {
        self.ram.memory().write_slice(pages, self.address(first)?).map_err(io::Error::other)
    }

    fn zero(&self, _first: u64, _count: u64) -> io::Result<()> {
        // RAM that was just mapped is zero.
        Ok(())
    }
}

/// All pages of two ascending sequences of ranges, each page once.
pub fn union(
    one: impl Iterator<Item = Range<u64>>,
    other: impl Iterator<Item = Range<u64>>,
) -> impl Iterator<Item = Range<u64>> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || {
        let mut range = take_lower(&mut one, &mut other)?;
        while let Some(next) = one
            .next_if(|next| next.start <= range.end)
            .or_else(|| other.next_if(|next| next.start <= range.end))
        {
            range.end = range.end.max(next.end);
        }
        Some(range)
    })
}

fn take_lower(
    one: &mut Peekable<impl Iterator<Item = Range<u64>>>,
    other: &mut Peekable<impl Iterator<Item = Range<u64>>>,
) -> Option<Range<u64>> {
    match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if second.start < first.start => other.next(),
        (Some(_), _) => one.next(),
        (None, _) => other.next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_union_has_every_page_once() {
        let pages = |ranges: &[Range<u64>]| -> Vec<u64> { ranges.iter().cloned().flatten().collect() };
        let one = [0..2, 5..9, 20..21];
        let other = [1..3, 3..4, 8..12, 12..13, 30..40];
        let both: Vec<_> = union(one.iter().cloned(), other.iter().cloned()).collect();
        let mut expected = [pages(&one), pages(&other)].concat();
        expected.sort_unstable();
        expected.dedup();
        assert_eq!(pages(&both), expected);
        assert_eq!(both, [0..4, 5..13, 20..21, 30..40]);
    }

    #[test]
    fn pages_continue_behind_the_hole() {
        let size = (3 << 30) + (1 << 20);
        let ram = GuestRam::allocate(forkd_memory::Layout::new(size).unwrap()).unwrap();
        let pages = RamPages::new(&ram).unwrap();
        let last_low = (3 << 30) / PAGE_BYTES - 1;
        pages.write(last_low, &[1; PAGE_SIZE]).unwrap();
        pages.write(last_low + 1, &[2; PAGE_SIZE]).unwrap();
        assert_eq!(ram.memory().read_obj::<u8>(GuestAddress((3 << 30) - 1)).unwrap(), 1);
        assert_eq!(ram.memory().read_obj::<u8>(GuestAddress(4 << 30)).unwrap(), 2);
        let mut read = [0; PAGE_SIZE];
        pages.read(last_low + 1, &mut read).unwrap();
        assert_eq!(read, [2; PAGE_SIZE]);
        assert!(pages.read(size / PAGE_BYTES, &mut read).is_err());
    }
}
