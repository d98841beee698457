//! Signals to children, by number as the protocols carry them.

use rustix::process::{Pid, kill_process, kill_process_group};

use super::Children;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(rustix::process::Signal);

impl Signal {
    pub const INT: Self = Self(rustix::process::Signal::INT);
    pub const KILL: Self = Self(rustix::process::Signal::KILL);
    /// Ignored by whoever has no handler for it.
    pub const URG: Self = Self(rustix::process::Signal::URG);

    /// Those that clients may send, by what they are called after `SIG`.
    const SENT: [(&str, rustix::process::Signal); 10] = [
        ("HUP", rustix::process::Signal::HUP),
        ("INT", rustix::process::Signal::INT),
        ("QUIT", rustix::process::Signal::QUIT),
        ("KILL", rustix::process::Signal::KILL),
        ("USR1", rustix::process::Signal::USR1),
        ("USR2", rustix::process::Signal::USR2),
        ("TERM", rustix::process::Signal::TERM),
        ("CONT", rustix::process::Signal::CONT),
        ("STOP", rustix::process::Signal::STOP),
        ("TSTP", rustix::process::Signal::TSTP),
    ];

    /// One that clients may send: `HUP`.
    pub fn named(name: &str) -> Option<Self> {
        Self::SENT.iter().find(|(known, _)| *known == name).map(|(_, signal)| Self(*signal))
    }

    pub fn numbered(number: u64) -> Option<Self> {
        let number = i32::try_from(number).ok()?;
        Self::SENT.iter().find(|(_, signal)| signal.as_raw() == number).map(|(_, signal)| Self(*signal))
    }

    /// What people call it: the words of strsignal, small.
    pub fn describe(number: i32) -> String {
        let known = match number {
            1 => "hangup",
            2 => "interrupt",
            3 => "quit",
            4 => "illegal instruction",
            5 => "trace/breakpoint trap",
            6 => "aborted",
            7 => "bus error",
            8 => "floating point exception",
            9 => "killed",
            10 => "user defined signal 1",
            11 => "segmentation fault",
            12 => "user defined signal 2",
            13 => "broken pipe",
            14 => "alarm clock",
            15 => "terminated",
            24 => "CPU time limit exceeded",
            25 => "file size limit exceeded",
            31 => "bad system call",
            _ => return number.to_string(),
        };
        known.to_owned()
    }
}

/// There is no such child any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Gone;

impl Children {
    /// Signals a child that has not been waited for, and everything that stayed in its process group.
    pub async fn signal_group(&self, pid: u32, signal: Signal) -> Result<(), Gone> {
        let table = self.table.lock().await;
        let known = table.contains_key(&pid).then_some(pid).and_then(|pid| i32::try_from(pid).ok());
        let target = known.and_then(Pid::from_raw).ok_or(Gone)?;
        let group = group_of(&pid.to_string()).ok_or(Gone)?;
        // One that has left its group may have entered the agent's.
        let sent = match Pid::from_raw(group).filter(|_| group_of("self") != Some(group)) {
            Some(group) => kill_process_group(group, signal.0),
            None => kill_process(target, signal.0),
        };
        sent.map_err(|_| Gone)
    }
}

/// The process group of a process. PID 1, and whoever it has started without a group, is in one whose number is 0, which `getpgid`
/// of rustix cannot return.
fn group_of(process: &str) -> Option<i32> {
    group_in(&std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?)
}

/// `PID (NAME) STATE PARENT GROUP …`, where the name may be anything.
fn group_in(stat: &str) -> Option<i32> {
    stat.rsplit(')').next()?.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    #[test]
    fn groups_are_found_also_if_they_have_no_number() {
        let start = |command: &mut std::process::Command| {
            let mut child = command.arg("60").spawn().unwrap();
            let (pid, group) = (child.id().to_string(), group_of(&child.id().to_string()));
            child.kill().unwrap();
            child.wait().unwrap();
            (pid.parse::<i32>().unwrap(), group)
        };
        let (pid, group) = start(std::process::Command::new("sleep").process_group(0));
        assert_eq!(group, Some(pid));
        // In a namespace of its own, the group of a test may be one without a number.
        let (_, group) = start(&mut std::process::Command::new("sleep"));
        assert!(group.is_some() && group == group_of("self"));
        assert_eq!(group_of("0"), None);
        assert_eq!(group_in("1 (init) S 0 0 0 0 -1 4194560"), Some(0));
        assert_eq!(group_in("7 (a) b) R 1 5 5 0"), Some(5));
        assert_eq!((group_in(""), group_in("7 (a)")), (None, None));
    }
}
