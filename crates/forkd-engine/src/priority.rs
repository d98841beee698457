//! How far a thread stands back behind others, for a CPU and for a disk.

#![expect(unsafe_code, reason = "ioprio_set has no wrapper")]

use std::io;

use rustix::process::{Pid, setpriority_process};

/// `IOPRIO_WHO_PROCESS`, which means a thread.
const THREAD: libc::c_long = 1;
/// `IOPRIO_CLASS_SHIFT`.
const CLASS: u32 = 13;
/// `IOPRIO_CLASS_IDLE`.
const IDLE: libc::c_long = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Priority {
    Usual,
    /// Little: beside one thread that never waits, three parts in two hundred of a CPU. `SCHED_IDLE` would be three in a thousand,
    /// and on a host with much to do that comes to nothing.
    Least,
}

/// Whether this process can take [`Priority::Least`] back.
pub(crate) fn can_be_taken_back() -> bool {
    rustix::process::geteuid().is_root()
}

/// Gives a thread a priority, which those have from the start that it makes.
pub(crate) fn set(thread: Pid, priority: Priority) -> io::Result<()> {
    let (nice, class) = match priority {
        Priority::Usual => (0, 0),
        Priority::Least => (19, IDLE << CLASS),
    };
    setpriority_process(Some(thread), nice)?;
    let thread = libc::c_long::from(thread.as_raw_nonzero().get());
    // SAFETY: the call takes three numbers and touches no memory of this process.
    match unsafe { libc::syscall(libc::SYS_ioprio_set, THREAD, thread, class) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod testing {
    /// The nice value of a thread of any process.
    pub fn nice_of(thread: i32) -> i32 {
        let stat = std::fs::read_to_string(format!("/proc/{thread}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().parse().unwrap()
    }
}

#[cfg(test)]
mod tests {
    use super::testing::nice_of;
    use super::*;

    use rustix::thread::gettid;

    /// Its nice value, and its class for disks.
    fn of_this_thread() -> (i32, libc::c_long) {
        const SELF: libc::c_long = 0;
        // SAFETY: the call takes two numbers.
        let io = unsafe { libc::syscall(libc::SYS_ioprio_get, THREAD, SELF) };
        (nice_of(gettid().as_raw_nonzero().get()), io >> CLASS)
    }

    #[test]
    fn a_thread_stands_back_and_those_that_it_makes() {
        let before = of_this_thread();
        let stood_back = std::thread::spawn(|| {
            set(gettid(), Priority::Least).unwrap();
            let child = std::thread::spawn(of_this_thread).join().unwrap();
            (child, set(gettid(), Priority::Usual).map(|()| of_this_thread()))
        });
        let (child, back) = stood_back.join().unwrap();
        assert_eq!(child, (19, IDLE));
        assert_eq!(back.is_ok(), can_be_taken_back());
        if let Ok((nice, class)) = back {
            // What the kernel says of no class depends on its version.
            assert_eq!((nice, class == IDLE), (0, false));
        }
        assert_eq!(of_this_thread(), before, "others are as they were");
    }
}
