//! What the kernel's page tables say of a process' pages.
//!
//! A VM process is given the descriptor: it cannot open `/proc`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(crate) const PAGE: u64 = 4096;
/// Bytes of the file for a page.
const BYTES: u64 = 8;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const EXCLUSIVE: u64 = 1 << 56;

#[derive(Debug)]
pub struct Pagemap(File);

/// What is known of one page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PagemapEntry(u64);

impl Pagemap {
    /// `file` is `/proc/PID/pagemap` of the process whose memory is looked at. A process that is forked from that one has
    /// another; as long as neither writes, both say the same of what is populated.
    pub fn new(file: File) -> Pagemap {
        Pagemap(file)
    }

    /// The entries of `count` pages from an address on.
    pub(crate) fn read(&self, address: u64, count: u64) -> io::Result<Vec<PagemapEntry>> {
        let bytes = usize::try_from(count * BYTES).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut entries = vec![0; bytes];
        self.0.read_exact_at(&mut entries, address / PAGE * BYTES)?;
        let (entries, _) = entries.as_chunks::<8>();
        Ok(entries.iter().map(|entry| PagemapEntry(u64::from_ne_bytes(*entry))).collect())
    }
}

impl PagemapEntry {
    /// In memory, or swapped out.
    pub fn is_populated(self) -> bool {
        self.0 & (PRESENT | SWAPPED) != 0
    }

    /// In memory, and no other process has it.
    pub fn is_own(self) -> bool {
        self.0 & PRESENT != 0 && self.0 & EXCLUSIVE != 0
    }
}
