//! What the kernel knows of a VM process' pages, opened for it: its jail has no `/proc`.

use std::fs::File;
use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Opens `/proc/PID/pagemap` so that its reader cannot see where in the host's memory a page is. The kernel goes by
/// what the one who opens it may do, so for that moment this thread may not.
///
/// A process says itself what its number is. One that lies about it is another user's: it gets nothing of theirs.
pub fn open(pid: i32, uid: Option<u32>) -> io::Result<File> {
    if uid.is_some_and(|uid| user_of(pid) != Some(uid)) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let all = capabilities(None)?;
    let fewer = CapabilitySets { effective: all.effective - CapabilitySet::SYS_ADMIN, ..all };
    set_capabilities(None, fewer)?;
    let opened = File::open(format!("/proc/{pid}/pagemap"));
    set_capabilities(None, all)?;
    opened
}

/// The user id of a process.
pub(crate) fn user_of(pid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn frame_numbers_are_not_told() {
        let own = i32::try_from(std::process::id()).unwrap();
        let before = capabilities(None).unwrap();
        let file = open(own, None).unwrap();
        assert_eq!(capabilities(None).unwrap(), before);
        assert!(open(own, user_of(own)).is_ok());
        assert!(open(own, user_of(own).map(|uid| uid + 1)).is_err());
        let written = Box::new(7u64);
        let page = std::ptr::from_ref(&*written).addr() / 4096;
        let mut entry = [0; 8];
        file.read_exact_at(&mut entry, page as u64 * 8).unwrap();
        let entry = u64::from_ne_bytes(entry);
        assert_ne!(entry & (1 << 63), 0, "the page is there");
        assert_eq!(entry & ((1 << 55) - 1), 0, "and nobody says where");
    }
}
