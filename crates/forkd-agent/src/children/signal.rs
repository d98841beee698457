//! Signals to children.

use rustix::process::{Pid, kill_process, kill_process_group};

use super::Children;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(rustix::process::Signal);

impl Signal {
    pub const INT: Self = Self(rustix::process::Signal::INT);
    pub const KILL: Self = Self(rustix::process::Signal::KILL);
    /// Ignored by processes without a handler for it.
    pub const URG: Self = Self(rustix::process::Signal::URG);
}

impl From<forkd_envd::Signal> for Signal {
    fn from(signal: forkd_envd::Signal) -> Signal {
        use forkd_envd::Signal as Sent;
        use rustix::process::Signal as System;
        Signal(match signal {
            Sent::Hup => System::HUP,
            Sent::Int => System::INT,
            Sent::Quit => System::QUIT,
            Sent::Kill => System::KILL,
            Sent::Usr1 => System::USR1,
            Sent::Usr2 => System::USR2,
            Sent::Term => System::TERM,
            Sent::Cont => System::CONT,
            Sent::Stop => System::STOP,
            Sent::Tstp => System::TSTP,
        })
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

/// The process group of a process. PID 1, and processes that it has started without a group, are in one whose number is 0, which `getpgid`
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
    fn signals_have_the_numbers_of_the_protocol() {
        for signal in forkd_envd::Signal::ALL {
            assert_eq!(Signal::from(signal).0.as_raw(), signal.number(), "{signal:?}");
        }
    }

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
