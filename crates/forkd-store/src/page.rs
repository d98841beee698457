//! Where pages come from and where they go: the two sides that the VMM implements over guest memory.

use std::io;
use std::ops::Range;

use crate::layout::{Layout, PAGE_SIZE};

/// Pages are read, hashed and written this many bytes at a time.
pub(crate) const BULK: usize = 1 << 20;
/// The same in pages.
pub(crate) const BULK_PAGES: u64 = (BULK / PAGE_SIZE) as u64;

static ZERO_PAGE: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Memory that does not change while it is read: a frozen VM's, or a chain's on disk.
pub trait PageSource {
    fn layout(&self) -> &Layout;

    /// Fills `buffer`, whole pages, with the pages from number `first` on. The store never asks for pages of two regions
    /// at once, nor for more than 1 MiB.
    fn read(&self, first: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Memory that a chain is assembled into. Each page of the layout is delivered once, by one of the two functions, in any order and from
/// several threads; pages of two regions never come in one call.
pub trait PageSink: Sync {
    /// Takes the pages from number `first` on, 2 MiB at most.
    fn write(&self, first: u64, pages: &[u8]) -> io::Result<()>;

    /// `count` pages from number `first` on are zero. Memory that was just mapped is, and has nothing to do.
    fn zero(&self, first: u64, count: u64) -> io::Result<()>;
}

/// Compares as a whole: much faster than a loop over bytes, and a page with data mostly differs in its first few.
pub(crate) fn is_zero(page: &[u8]) -> bool {
    *page == ZERO_PAGE[..page.len().min(PAGE_SIZE)]
}

/// Splits whole pages into runs that are all zero or all data. Ranges are in bytes.
pub(crate) fn runs(pages: &[u8]) -> impl Iterator<Item = (Range<usize>, bool)> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let rest = pages.get(begin..).filter(|rest| !rest.is_empty())?;
        let mut kinds = rest.chunks(PAGE_SIZE).map(is_zero);
        let zero = kinds.next()?;
        let count = 1 + kinds.take_while(|&kind| kind == zero).count();
        let run = begin..(begin + count * PAGE_SIZE).min(pages.len());
        begin = run.end;
        Some((run, zero))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_alternate_and_cover_everything() {
        let mut pages = vec![0; 6 * PAGE_SIZE];
        pages[2 * PAGE_SIZE - 1] = 1;
        pages[2 * PAGE_SIZE] = 1;
        pages[5 * PAGE_SIZE + 77] = 1;
        let found: Vec<_> =
            runs(&pages).map(|(run, zero)| (run.start / PAGE_SIZE..run.end / PAGE_SIZE, zero)).collect();
        assert_eq!(found, [(0..1, true), (1..3, false), (3..5, true), (5..6, false)]);
        assert_eq!(runs(&[]).count(), 0);
    }
}
