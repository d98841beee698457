//! A process that outlives the one that started it, named so that a reused process id is never mistaken for it.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// A process id together with the process's start time, in clock ticks since boot: unique until the host reboots, and
/// after that the start time will not match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessName {
    pub pid: i32,
    pub start_time: u64,
}

impl ProcessName {
    /// Names a living process.
    pub fn of(pid: i32) -> Option<ProcessName> {
        Some(ProcessName { pid, start_time: start_time(pid)? })
    }

    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }

    /// Sends SIGKILL, to this process only.
    pub fn kill(&self) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        let Ok(process) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        // The descriptor refers to one process for ever. Asking after it was opened whether that is the right one
        // leaves no moment in which the id could change hands.
        if self.is_alive() {
            // It can only fail because the process is gone, which is what was wanted.
            let _ = rustix::process::pidfd_send_signal(&process, Signal::KILL);
        }
    }

    /// Sends SIGKILL and waits for the process to end; false if it has not by then.
    pub fn end(&self, limit: Duration) -> bool {
        self.kill();
        self.wait(limit)
    }

    /// Waits for the process to end; false if it has not by then.
    pub fn wait(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while self.is_alive() {
            if begun.elapsed() > limit {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }
}

/// The start time in /proc/PID/stat, unless the process has ended and only waits to be collected.
fn start_time(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in parentheses and may contain anything, parentheses too.
    let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
    let (state, threads) = (*fields.first()?, fields.get(17)?.parse::<u32>().ok()?);
    // A zombie with more than one thread is a process whose first thread has ended and whose others still hold its files
    // and ports.
    if matches!(state, "Z" | "X") && threads <= 1 {
        return None;
    }
    fields.get(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_known_until_it_ends() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let name = ProcessName::of(i32::try_from(child.id()).unwrap()).unwrap();
        assert!(name.is_alive());
        assert!(!name.wait(Duration::from_millis(30)));
        // It was not waited for yet: a zombie counts as ended.
        assert!(name.end(Duration::from_secs(20)));
        child.wait().unwrap();
        assert!(!name.is_alive());
    }

    #[test]
    fn a_reused_id_is_another_process() {
        let own = ProcessName::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        let stale = ProcessName { start_time: own.start_time - 1, ..own };
        assert!(!stale.is_alive());
        stale.kill();
        assert!(own.is_alive());
    }
}
