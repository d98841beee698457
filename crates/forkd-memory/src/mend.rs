//! Huge pages again, where a guest has written since a fork.
//!
//! A huge page that two processes share becomes small ones when one of them writes: the kernel copies 4 KiB, not 2 MiB. The
//! next fork(2) of that process has 512 entries to copy instead of one. So the small pages are put together again, once all
//! 512 of them are the process' own. Until then, a huge page would take memory that is still shared.
//!
//! The kernel's own daemon does the same, but it looks at 16 MiB every 10 s.

use std::mem;

use crate::mapping::{self, HUGE_PAGE};
use crate::pagemap::{PAGE, Pagemap, PagemapEntry};
use crate::ram::{GuestRam, RamRegion};

/// Huge pages that are looked at in one step, which takes a few milliseconds at most.
const STEP: usize = 16;

/// The huge pages of a guest's RAM that may be in pieces, by their addresses.
#[derive(Debug)]
pub struct Mender {
    pagemap: Pagemap,
    /// What this round has not looked at yet.
    ahead: Vec<usize>,
    /// What it has left as it was.
    left: Vec<usize>,
}

impl GuestRam {
    /// A mender for RAM that has just been forked: of all of it, nothing is known. The pagemap is the process' own.
    pub fn mender(&self, pagemap: Pagemap) -> Mender {
        let huge_pages = |region: RamRegion| {
            let whole = region.len - region.len % HUGE_PAGE as u64;
            (region.host..region.host + whole).step_by(HUGE_PAGE)
        };
        let addresses = self.regions().flat_map(huge_pages);
        let ahead = addresses.filter_map(|address| usize::try_from(address).ok()).collect();
        Mender { pagemap, ahead, left: Vec::new() }
    }
}

impl Mender {
    /// Looks at a few huge pages, and mends those it can. At the end of a round, returns how many it had to leave; the next
    /// step begins another round with them.
    pub fn step(&mut self) -> Option<usize> {
        let some = self.ahead.split_off(self.ahead.len().saturating_sub(STEP));
        let (own, shared): (Vec<_>, Vec<_>) = some.into_iter().partition(|address| self.is_own(*address));
        for run in own.chunk_by(|one, next| one + HUGE_PAGE == *next) {
            mapping::collapse(run[0], run.len() * HUGE_PAGE);
        }
        self.left.extend(shared);
        if !self.ahead.is_empty() {
            return None;
        }
        self.left.sort_unstable();
        self.ahead = mem::take(&mut self.left);
        Some(self.ahead.len())
    }

    /// Whether all of a huge page is there, and the process' own. Most are not, and show it with their first page.
    fn is_own(&self, address: usize) -> bool {
        [1, HUGE_PAGE as u64 / PAGE].into_iter().all(|pages| {
            let entries = self.pagemap.read(address as u64, pages);
            entries.is_ok_and(|entries| entries.into_iter().all(PagemapEntry::is_own))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use vm_memory::{Bytes, GuestAddress};

    fn huge_kib(ram: &GuestRam) -> u64 {
        let region = ram.regions().next().unwrap();
        let range = format!("{:x}-", region.host);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let line = smaps.lines().skip_while(|line| !line.starts_with(&range));
        let line = line.skip(1).find(|line| line.starts_with("AnonHugePages:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn round(mender: &mut Mender) -> usize {
        (0..1000).find_map(|_| mender.step()).unwrap()
    }

    #[test]
    fn a_page_in_pieces_is_mended_when_all_of_it_is_there() {
        let ram = GuestRam::allocate(Layout::new(64 << 20).unwrap()).unwrap();
        let filled = 40 << 20;
        let content: Vec<u8> = (0..filled).map(|at: u32| (at >> 9).to_le_bytes()[0]).collect();
        ram.memory().write_slice(&content, GuestAddress(0)).unwrap();
        let before = huge_kib(&ram);
        assert_eq!(before, 40 << 10, "this host has no huge pages to give");
        let host = usize::try_from(ram.regions().next().unwrap().host).unwrap();
        let broken = [3, 4, 17].map(|huge| huge * HUGE_PAGE + 5 * 4096);
        for at in broken {
            mapping::drop_page(host + at);
        }
        assert_eq!(huge_kib(&ram), before - 3 * 2048);

        let own = std::fs::File::open("/proc/self/pagemap").unwrap();
        let mut mender = ram.mender(Pagemap::new(own));
        let unused = 24 / 2;
        assert_eq!(round(&mut mender), unused + 3, "a hole is not filled");
        assert_eq!(huge_kib(&ram), before - 3 * 2048);

        for at in broken {
            ram.memory().write_slice(&content[at..at + 4096], GuestAddress(at as u64)).unwrap();
        }
        assert_eq!(round(&mut mender), unused);
        assert_eq!(huge_kib(&ram), before);
        let mut found = vec![0; content.len()];
        ram.memory().read_slice(&mut found, GuestAddress(0)).unwrap();
        assert!(found == content);
    }
}
