//! What a child does between fork and exec.
//!
//! The parent may have had threads, and one of them a lock, when it was copied. So nothing here allocates, locks or panics:
//! only system calls with what was prepared before the fork.
#![expect(unsafe_code, reason = "code that runs between fork and exec cannot be checked by the compiler")]

use std::ffi::{CString, NulError};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::process::{
    Pid, Resource, Rlimit, WaitOptions, chdir, ioctl_tiocsctty, setpgid, setrlimit, setsid, waitpid,
};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::users::User;

/// When memory runs out, what the agent started goes before the agent.
const OOM_SCORE_ADJUSTMENT: &[u8] = b"100";

/// To the kernel: the process that writes it.
const MYSELF: &[u8] = b"0";

const LAST_SIGNAL: i32 = 64;

/// All that the child needs, allocated by the parent.
#[derive(Debug)]
pub(super) struct BeforeExec {
    directory: CString,
    /// Nothing when this process already is that user: only root may make these calls.
    identity: Option<(Uid, Gid, Vec<Gid>)>,
    terminal: bool,
    descriptors: Rlimit,
    /// The file that a process enters its cgroup with.
    cgroup: Option<Arc<File>>,
}

impl BeforeExec {
    pub(super) fn new(
        directory: &Path,
        user: &User,
        terminal: bool,
        descriptors: Rlimit,
        cgroup: Option<Arc<File>>,
    ) -> Result<Self, NulError> {
        let same = rustix::process::geteuid().as_raw() == user.uid && user.uid != 0;
        let groups = || user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let identity = (!same).then(|| (Uid::from_raw(user.uid), Gid::from_raw(user.gid), groups()));
        Ok(Self {
            directory: CString::new(directory.as_os_str().as_bytes())?,
            identity,
            terminal,
            descriptors,
            cgroup,
        })
    }

    pub(super) fn attach(self, command: &mut Command) {
        // SAFETY: `run` makes system calls through rustix, which issues them itself and takes no lock of the C library, on
        // memory that exists already. It returns errors as numbers, which allocates nothing.
        unsafe { command.pre_exec(move || self.run()) };
    }

    fn run(&self) -> io::Result<()> {
        if let Some(cgroup) = &self.cgroup {
            // The guest's root may have removed or changed the cgroup, which is not a reason to start nothing.
            let _ = rustix::io::write(cgroup, MYSELF);
        }
        // An ignored signal stays ignored over exec. An agent that was started in the background of a shell, or under nohup,
        // would have terminals in which Ctrl+C does nothing.
        for number in 1..=LAST_SIGNAL {
            // SAFETY: the default action is no code of ours. Numbers that cannot be changed are refused, which is fine.
            unsafe { libc::signal(number, libc::SIG_DFL) };
        }
        if self.terminal {
            setsid()?;
            // SAFETY: the standard streams are in place before this runs, so 0 is open and stays open until exec.
            let stdin = unsafe { BorrowedFd::borrow_raw(0) };
            ioctl_tiocsctty(stdin)?;
        } else {
            enter_new_group()?;
        }
        // While still root: after changing the user, the kernel shows root as the owner of this file until exec.
        let score =
            rustix::fs::open(c"/proc/self/oom_score_adj", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
        if let Ok(score) = score {
            // A guest without /proc is not a reason to start nothing.
            let _ = rustix::io::write(&score, OOM_SCORE_ADJUSTMENT);
        }
        let _ = setrlimit(Resource::Nofile, self.descriptors);
        if let Some((uid, gid, groups)) = &self.identity {
            // After a fork there is one thread, so the calls for a thread are those for the process.
            set_thread_groups(groups)?;
            set_thread_res_gid(*gid, *gid, *gid)?;
            set_thread_res_uid(*uid, *uid, *uid)?;
        }
        // As the user: one who may not enter a directory does not start there either.
        chdir(self.directory.as_c_str())?;
        Ok(())
    }
}

/// Enters a process group without other processes, without leading it. `setsid` forks in a leader and ends at once, so that
/// the waiter for its program would see neither its output nor its status.
fn enter_new_group() -> io::Result<()> {
    // SAFETY: as fork(2) without the C library's locks. The new process has its own copy of this memory and only ends.
    let leader = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if leader == 0 {
        // SAFETY: it runs nothing that was registered for an exit.
        unsafe { libc::_exit(0) };
    }
    let leader = i32::try_from(leader).ok().and_then(Pid::from_raw).filter(|leader| !leader.is_init());
    let leader = leader.ok_or_else(io::Error::last_os_error)?;
    // Until it is waited for, one that has ended can still be a leader. The group stays as long as anybody is in it.
    let entered = setpgid(Some(leader), Some(leader)).and_then(|()| setpgid(None, Some(leader)));
    waitpid(Some(leader), WaitOptions::empty())?;
    Ok(entered?)
}
