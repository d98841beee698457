//! Which pages of guest RAM hold anything, as the kernel's page tables know it.

use std::ops::Range;

use crate::pagemap::{PAGE, Pagemap, PagemapEntry};
use crate::ram::GuestRam;

/// Pages looked at together: 32 MiB of memory, which is whole huge pages.
const BATCH: u64 = 8192;

/// Pages that are looked at together: the number of the first, its address in the process, and how many.
pub(crate) struct Batch {
    pub page: u64,
    pub address: u64,
    pub count: u64,
}

impl GuestRam {
    /// Ranges of pages, ascending, that may hold something; the others are zero. Pages are numbered one after another, across
    /// the holes between regions. Without that information, it is all of them.
    pub fn populated(&self, pagemap: Option<&Pagemap>) -> impl Iterator<Item = Range<u64>> {
        self.batches().into_iter().flat_map(move |Batch { page, address, count }| {
            let entries = pagemap.and_then(|pagemap| pagemap.read(address, count).ok());
            let there = match entries {
                Some(entries) => entries.into_iter().map(PagemapEntry::is_populated).collect(),
                None => vec![true; usize::try_from(count).unwrap_or_default()],
            };
            runs(&there).map(|run| page + run.start..page + run.end).collect::<Vec<_>>()
        })
    }

    /// All pages in order. A batch begins at the beginning of a huge page.
    pub(crate) fn batches(&self) -> Vec<Batch> {
        let mut first = 0;
        let mut batches = Vec::new();
        for region in self.regions() {
            let pages = region.len / PAGE;
            for begin in (0..pages).step_by(usize::try_from(BATCH).unwrap_or(1)) {
                let address = region.host + begin * PAGE;
                batches.push(Batch { page: first + begin, address, count: BATCH.min(pages - begin) });
            }
            first += pages;
        }
        batches
    }
}

/// The runs of pages that are there.
pub(crate) fn runs(there: &[bool]) -> impl Iterator<Item = Range<u64>> {
    let mut pages = (0u64..).zip(there).peekable();
    std::iter::from_fn(move || {
        let (first, _) = pages.find(|(_, there)| **there)?;
        let mut end = first + 1;
        while pages.next_if(|(_, there)| **there).is_some() {
            end += 1;
        }
        Some(first..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use vm_memory::{Bytes, GuestAddress};

    #[test]
    fn runs_are_found() {
        let there = [false, true, true, false, true];
        assert_eq!(runs(&there).collect::<Vec<_>>(), [1..3, 4..5]);
        assert_eq!(runs(&[]).count(), 0);
    }

    /// Whatever was written is in the list, also behind the hole; most of what was not is not.
    #[test]
    fn what_was_written_is_populated() {
        let size: u64 = (3 << 30) + (64 << 20);
        let ram = GuestRam::allocate(Layout::new(size).unwrap()).unwrap();
        let behind_the_hole = (4u64 << 30) + (10 << 20);
        for address in [0u64, 5 << 20, 700 << 20, behind_the_hole] {
            ram.memory().write_obj(1u8, GuestAddress(address)).unwrap();
        }
        let ranges: Vec<_> = {
            let own = std::fs::File::open("/proc/self/pagemap").unwrap();
            ram.populated(Some(&Pagemap::new(own))).collect()
        };
        let pages = [0, (5 << 20) / PAGE, (700 << 20) / PAGE, ((3 << 30) + (10 << 20)) / PAGE];
        for page in pages {
            assert!(ranges.iter().any(|range| range.contains(&page)), "{page}");
        }
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
        assert!(ranges.iter().map(|range| range.end - range.start).sum::<u64>() <= 4 * 512);
    }
}
