//! The one place where guest memory is mapped.

#![expect(unsafe_code, reason = "mmap, madvise and munmap work on addresses")]

use std::io;
use std::ptr;

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// The size of a huge page, and the alignment that lets the kernel use one.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Maps `len` bytes of zeroes for as long as the process lives, private and aligned for huge pages, and returns their
/// address.
///
/// For ever, because a process has one VM: its memory ends with it, and code that got hold of the address can never be left
/// with a mapping that is gone. Guests write to it at any moment, so no Rust reference into it is made: it is read and
/// written through `vm_memory`, whose accesses are volatile.
///
/// Page tables are what fork(2) copies: with pages of 4 KiB that takes 14 µs a MiB, with huge pages 0.6 µs.
pub(crate) fn map_private(len: usize) -> io::Result<*mut u8> {
    let reserved = len.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a null hint lets the kernel choose; nothing that is mapped already is touched.
    let start =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), reserved, protection, flags) }?.cast::<u8>();
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let address = start.wrapping_add(before);
    // The mapping is larger by one huge page so that an aligned part of the right size is in it. The rest goes back.
    for (surplus, size) in [(start, before), (address.wrapping_add(len), HUGE_PAGE - before)] {
        if size > 0 {
            // SAFETY: the range is inside the mapping made above, outside of the part that is kept, and unused.
            unsafe { rustix::mm::munmap(surplus.cast(), size) }?;
        }
    }
    // SAFETY: the range is the mapping's own. The advice changes the size of its pages, not their content.
    match unsafe { rustix::mm::madvise(address.cast(), len, Advice::LinuxHugepage) } {
        // A kernel without transparent huge pages has nothing to advise.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(address),
        Err(errno) => Err(errno.into()),
    }
}

/// Puts `len` bytes at `address`, both multiples of a huge page, on huge pages, by copying them. What cannot be moved now,
/// because the kernel uses it or has no huge page left, stays where it is.
pub(crate) fn collapse(address: usize, len: usize) {
    // SAFETY: the advice moves content to other pages of the process; at every address it stays the same, also for code that
    // writes there meanwhile. An address that is not mapped is refused.
    unsafe { libc::madvise(ptr::without_provenance_mut(address), len, libc::MADV_COLLAPSE) };
}

/// Makes `len` bytes at `address` the process' own, as if each page were written: what another process shares is copied.
pub(crate) fn populate_for_writing(address: usize, len: usize) -> io::Result<()> {
    let advice = libc::MADV_POPULATE_WRITE;
    // SAFETY: the advice takes the faults of a write without writing: at every address the content stays the same. An address
    // that is not mapped is refused.
    match unsafe { libc::madvise(ptr::without_provenance_mut(address), len, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes one page back, and with it apart the huge page that it is in.
#[cfg(test)]
pub(crate) fn drop_page(address: usize) {
    // SAFETY: the page is of a test's own mapping, which reads as zeroes there from now on.
    unsafe { libc::madvise(ptr::without_provenance_mut(address), 4096, libc::MADV_DONTNEED) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_and_exact() {
        for len in [4096, HUGE_PAGE - 4096, HUGE_PAGE, 5 * HUGE_PAGE + 4096] {
            let address = map_private(len).unwrap().addr();
            assert!(address.is_multiple_of(HUGE_PAGE));
            let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let range = format!("{address:x}-{:x} rw-p", address + len);
            let mut mapping = smaps.lines().skip_while(|line| !line.starts_with(&range));
            assert!(mapping.next().is_some(), "{range} is not in {smaps}");
            let flags = mapping.find(|line| line.starts_with("VmFlags:")).unwrap();
            assert!(flags.contains(" hg"), "no huge pages: {flags}");
        }
    }
}
