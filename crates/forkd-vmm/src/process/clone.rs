//! The fork of fork: clone3, which gives a pidfd and puts the new process into its cgroup before it runs.

#![expect(unsafe_code, reason = "clone3 has no wrapper, and a forked process is what its caller makes of it")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

/// libc has it in a type that is too small for it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Which of the two processes this is.
pub enum Side {
    Parent { pid: i32, pidfd: OwnedFd },
    Child,
}

/// Forks the process.
///
/// Only the calling thread is in the child, so all others must be where they hold nothing the child will want: vCPU threads
/// are parked on a condition variable, with no lock and not inside the allocator. glibc's fork would take the allocator's
/// locks around the call; without other threads, nothing is missed.
pub fn clone_process(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Side> {
    forkd_proto::passes!();
    let mut pidfd: RawFd = -1;
    let mut flags = libc::CLONE_PIDFD as u64;
    let mut arguments = libc::clone_args {
        flags: 0,
        pidfd: (&raw mut pidfd).addr() as u64,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD.cast_unsigned().into(),
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    };
    if let Some(cgroup) = cgroup {
        flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = u64::from(cgroup.as_raw_fd().cast_unsigned());
    }
    // glibc keeps the thread's id in its descriptor and would go on using the parent's. The kernel was told at start-up
    // where that is, to clear it when the thread ends, and tells; with these flags it writes the new id there.
    if let Some(address) = thread_id_address() {
        flags |= (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID) as u64;
        arguments.child_tid = address;
    }
    arguments.flags = flags;
    // SAFETY: the structure has the size that is passed, and all addresses in it are null or valid for writing. Without
    // CLONE_VM the child has a copy of everything, and runs on a copy of this stack.
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, mem::size_of::<libc::clone_args>()) };
    match result {
        0 => Ok(Side::Child),
        pid if pid > 0 => {
            // SAFETY: the kernel has just opened this descriptor for the caller, and no other code knows of it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Side::Parent { pid: i32::try_from(pid).unwrap_or(i32::MAX), pidfd })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where the calling thread's id is kept. `None` on a kernel without checkpoint support: then the child's id stays stale,
/// which only functions that signal the calling thread itself would notice.
fn thread_id_address() -> Option<u64> {
    let mut address: *mut i32 = ptr::null_mut();
    // SAFETY: PR_GET_TID_ADDRESS writes one pointer to the address given.
    let result = unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut address) };
    (result == 0 && !address.is_null()).then(|| address.addr() as u64)
}

/// Closes all descriptors but stdin, stdout and stderr: whatever the starting process has let through is not ours, and
/// would be passed on to every child. Called before anything is opened.
pub fn close_inherited() {
    const FIRST: libc::c_uint = 3;
    // SAFETY: nothing in this process has opened a descriptor yet, so no code relies on one of these.
    unsafe { libc::close_range(FIRST, libc::c_uint::MAX, 0) };
}

/// Keeps glibc's allocator from opening files, which the jail would take for an attack: for a second arena it asks how much
/// memory may be promised. With one, a fork copies less, too.
pub fn allocate_without_files() {
    // SAFETY: sets a number of the allocator's, before there is a second thread.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
}

/// Has the kernel collect children when they end.
pub fn reap_children_automatically() {
    // SAFETY: SIG_IGN for SIGCHLD installs no handler. This process starts no programs whose status it would want.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}
