//! Project quotas: what a VM process can write to its disk, kept by the kernel.
//!
//! The top layer of each disk is a project of its own with a hard limit, on a file system that enforces them (ext4 with `prjquota`, XFS
//! with `pquota`). A frozen layer belongs to no project: it is shared by its branches and never written again.
//!
//! A top layer's limit is the disk's, whatever older layers hold: a guest that writes again what it has written counts it once, and
//! that is in the top layer then. So a branch does not lower it.
//!
//! Nothing is written down. Which ids are in use, the kernel knows: it counts the files of each.
#![expect(unsafe_code, reason = "quotactl and the ioctls of projects have no wrapper")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use crate::process::users::UidRange;

/// `PRJQUOTA`: the kind of quota.
const PROJECT: u32 = 2;
/// `QCMD(Q_GETQUOTA, PRJQUOTA)` and its like.
const GET_QUOTA: u32 = (0x80_0007 << 8) | PROJECT;
const SET_QUOTA: u32 = (0x80_0008 << 8) | PROJECT;
const GET_STATE: u32 = (0x58_05 << 8) | PROJECT;
/// `QIF_BLIMITS`: which of a quota's fields are set.
const BLOCK_LIMITS: u32 = 1;
/// `FS_QUOTA_PDQ_ENFD` in `qs_flags` of `struct fs_quota_stat`.
const ENFORCED: u64 = 1 << 5;
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`.
const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820;
/// Limits are counted in these.
const BLOCK: u64 = 1024;
/// Ids that are looked at before it is given up.
const TRIES: u32 = 4096;

/// `struct if_dqblk`.
#[derive(Debug, Default)]
#[repr(C)]
struct Quota {
    hard_blocks: u64,
    soft_blocks: u64,
    bytes: u64,
    hard_files: u64,
    soft_files: u64,
    files: u64,
    block_time: u64,
    file_time: u64,
    valid: u32,
}
const _: () = assert!(size_of::<Quota>() == 72);

/// `struct fsxattr`.
#[derive(Debug, Default)]
#[repr(C)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    unused: [u8; 8],
}
const _: () = assert!(size_of::<Attributes>() == 28);

/// The project ids of a file system that enforces quotas.
#[derive(Debug)]
pub(crate) struct ProjectQuotas {
    range: UidRange,
    /// How many were looked at. A new one is looked for under the lock: two files never get the same.
    next: Mutex<u32>,
}

impl ProjectQuotas {
    /// `None` if the file system of a directory does not enforce quotas of projects, or not for this process.
    pub fn find(directory: &Path, range: UidRange) -> Option<ProjectQuotas> {
        let opened = File::open(directory).ok()?;
        let mut state = [0u64; 16];
        // SAFETY: the kernel writes a `struct fs_quota_stat`, of 80 bytes, to 128.
        unsafe { quotactl(&opened, GET_STATE, 0, state.as_mut_ptr().cast()) }.ok()?;
        if (state[0] >> 16) & ENFORCED == 0 {
            return None;
        }
        // Whether this process may set any: one is set to what it is.
        let last = range.first + (range.count - 1);
        let quota = quota(&opened, last).ok()?;
        set_limit(&opened, last, quota.hard_blocks * BLOCK).ok()?;
        Some(ProjectQuotas { range, next: Mutex::new(0) })
    }

    /// Has a new file hold this many bytes at most. One that is in a project already, as all of a directory can be, is left in it.
    pub fn limit(&self, file: &File, bytes: u64) -> io::Result<()> {
        if attributes(file)?.project != 0 {
            return Ok(());
        }
        // A panic while holding the lock leaves a number.
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..TRIES.min(self.range.count) {
            let id = self.range.first + *next % self.range.count;
            *next = next.wrapping_add(1);
            if quota(file, id)?.files == 0 {
                set_limit(file, id, bytes)?;
                return set_project(file, id);
            }
        }
        Err(io::Error::other("no project id is free"))
    }

    /// Takes a file out of its project, if that is one of these.
    pub fn release(&self, file: &File) -> io::Result<()> {
        let id = attributes(file)?.project;
        if id.checked_sub(self.range.first).is_none_or(|number| number >= self.range.count) {
            return Ok(());
        }
        set_project(file, 0)?;
        set_limit(file, id, 0)
    }
}

fn quota(file: &File, id: u32) -> io::Result<Quota> {
    let mut quota = Quota::default();
    // SAFETY: the kernel writes a `struct if_dqblk`, which `Quota` is.
    match unsafe { quotactl(file, GET_QUOTA, id, (&raw mut quota).cast()) } {
        // XFS knows none that was never used.
        Ok(()) | Err(Errno::NOENT) => Ok(quota),
        Err(errno) => Err(errno.into()),
    }
}

fn set_limit(file: &File, id: u32, bytes: u64) -> io::Result<()> {
    let mut quota = Quota { hard_blocks: bytes.div_ceil(BLOCK), valid: BLOCK_LIMITS, ..Quota::default() };
    // SAFETY: the kernel reads a `struct if_dqblk`, which `Quota` is.
    Ok(unsafe { quotactl(file, SET_QUOTA, id, (&raw mut quota).cast()) }?)
}

fn attributes(file: &File) -> io::Result<Attributes> {
    let mut attributes = Attributes::default();
    // SAFETY: the kernel writes a `struct fsxattr`, which `Attributes` is; the descriptor is open.
    match unsafe { libc::ioctl(file.as_raw_fd(), GET_ATTRIBUTES, &raw mut attributes) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(attributes),
    }
}

fn set_project(file: &File, id: u32) -> io::Result<()> {
    let attributes = Attributes { project: id, ..attributes(file)? };
    // SAFETY: the kernel reads a `struct fsxattr`, which `Attributes` is; the descriptor is open.
    match unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, &raw const attributes) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// quotactl_fd(2), for the file system of a file.
///
/// # Safety
///
/// `data` points to what the command says.
unsafe fn quotactl(file: &File, command: u32, id: u32, data: *mut libc::c_void) -> Result<(), Errno> {
    // SAFETY: the caller's promise; the descriptor is open as long as `file` is borrowed.
    match unsafe { libc::syscall(libc::SYS_quotactl_fd, file.as_raw_fd(), command, id, data) } {
        -1 => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's refusals are shown with real guests, on a kernel that has quotas (`tests/isolation/disk.rs`).
    #[test]
    fn a_file_system_without_quotas_is_told_from_one_with_them() {
        assert!(ProjectQuotas::find(Path::new("/dev/shm"), UidRange::default()).is_none());
        assert!(ProjectQuotas::find(Path::new("/not/there"), UidRange::default()).is_none());
    }
}
