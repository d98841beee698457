//! Pages that a fork of the process is known to write: which they are, and how they are copied before anybody writes.
//!
//! The first write into a huge page that two processes share takes it apart, and then copies 4 KiB. If KVM has mapped the huge page
//! for a guest, all of the guest's 2 MiB are unmapped with that, and it faults on each page again. Copied before KVM maps anything,
//! a page costs one fault in the kernel and none in the guest.

use std::io;
use std::ops::Range;

use crate::mapping;
use crate::pagemap::{PAGE, Pagemap, PagemapEntry};
use crate::populated::{Batch, runs};
use crate::ram::{GuestRam, RamRegion};

impl GuestRam {
    /// How many pages there are, numbered one after another, across the holes between regions.
    pub fn pages(&self) -> u64 {
        self.regions().map(|region| region.len / PAGE).sum()
    }

    /// Where a run of pages is: in one piece, unless there is a hole between two of them. Pages that do not exist are nowhere.
    pub fn pieces(&self, run: Range<u64>) -> impl Iterator<Item = RamRegion> {
        let mut first = 0;
        self.regions().filter_map(move |region| {
            let pages = first..first + region.len / PAGE;
            first = pages.end;
            let (begin, end) = (run.start.max(pages.start), run.end.min(pages.end));
            let (offset, len) = ((begin.checked_sub(pages.start)?) * PAGE, end.checked_sub(begin)? * PAGE);
            let guest = region.guest.0.checked_add(offset)?;
            (len > 0).then(|| RamRegion {
                guest: vm_memory::GuestAddress(guest),
                host: region.host + offset,
                len,
            })
        })
    }

    /// Copies a run of pages that another process shares, so that writing to them is no fault. Nothing is written.
    pub fn copy_ahead(&self, run: Range<u64>) -> io::Result<()> {
        for piece in self.pieces(run) {
            let [address, len] = [piece.host, piece.len].map(usize::try_from);
            let too_far = |_| io::ErrorKind::InvalidInput;
            mapping::populate_for_writing(address.map_err(too_far)?, len.map_err(too_far)?)?;
        }
        Ok(())
    }

    /// Ranges of pages, ascending, that this process has alone: copies of what it shared with the one that it was forked from, and
    /// memory that was not in use before.
    pub fn own(&self, pagemap: &Pagemap) -> io::Result<Vec<Range<u64>>> {
        let mut all = Vec::new();
        for Batch { page, address, count } in self.batches() {
            let own: Vec<bool> =
                pagemap.read(address, count)?.into_iter().map(PagemapEntry::is_own).collect();
            all.extend(runs(&own).map(|run| page + run.start..page + run.end));
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::mapping::HUGE_PAGE;
    use vm_memory::{Bytes, GuestAddress};

    #[test]
    fn a_run_across_the_hole_has_two_pieces() {
        let ram = GuestRam::allocate(Layout::new((3 << 30) + (1 << 20)).unwrap()).unwrap();
        let below = (3u64 << 30) / PAGE;
        assert_eq!(ram.pages(), below + 256);
        let pieces = |run| ram.pieces(run).map(|piece| (piece.guest.0, piece.len)).collect::<Vec<_>>();
        assert_eq!(pieces(0..2), [(0, 2 * PAGE)]);
        assert_eq!(pieces(below - 1..below + 1), [((3 << 30) - PAGE, PAGE), (4 << 30, PAGE)]);
        assert_eq!(pieces(below + 255..below + 300), [((4 << 30) + 255 * PAGE, PAGE)]);
        assert_eq!(pieces(below + 256..below + 300), []);
        assert_eq!(pieces(5..5), []);
        let backwards = Range { start: 7, end: 3 };
        assert_eq!(pieces(backwards), []);
        let host = ram.regions().next().unwrap().host;
        assert_eq!(ram.pieces(3..4).next().unwrap().host, host + 3 * PAGE);
    }

    /// What is populated is there, and what was in it stays.
    #[test]
    fn pages_are_there_before_anybody_writes() {
        let ram = GuestRam::allocate(Layout::new(64 << 20).unwrap()).unwrap();
        ram.memory().write_obj(7u64, GuestAddress(8 << 20)).unwrap();
        let pagemap = || Pagemap::new(std::fs::File::open("/proc/self/pagemap").unwrap());
        let is_there = |page| {
            let pagemap = pagemap();
            ram.populated(Some(&pagemap)).any(|range| range.contains(&page))
        };
        let far = (40 << 20) / PAGE;
        assert!(!is_there(far));
        ram.copy_ahead(far..far + 2).unwrap();
        ram.copy_ahead((8 << 20) / PAGE..(8 << 20) / PAGE + 1).unwrap();
        ram.copy_ahead(ram.pages()..ram.pages() + 5).unwrap();
        assert!(is_there(far));
        assert_eq!(ram.memory().read_obj::<u64>(GuestAddress(8 << 20)).unwrap(), 7);
        assert_eq!(ram.memory().read_obj::<u64>(GuestAddress(40 << 20)).unwrap(), 0);
    }

    #[test]
    fn own_pages_are_told_in_runs() {
        let ram = GuestRam::allocate(Layout::new(8 << 20).unwrap()).unwrap();
        let host = usize::try_from(ram.regions().next().unwrap().host).unwrap();
        ram.memory().write_slice(&vec![1; 6 << 20], GuestAddress(0)).unwrap();
        // A hole is in the second of three.
        mapping::drop_page(host + HUGE_PAGE + 5 * 4096);
        let pagemap = Pagemap::new(std::fs::File::open("/proc/self/pagemap").unwrap());
        assert_eq!(ram.own(&pagemap).unwrap(), [0..517, 518..1536]);
    }
}
