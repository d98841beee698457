//! A VM process: one that this one has started, or one that was forked from a zygote.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::Event;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::cgroup::{CgroupError, Cgroups, Leaf, Quota};
use crate::control::Control;
use crate::socket::AsyncPidfd;

/// A process, told what to do over its control socket. It ends with this value.
#[derive(Debug)]
pub struct VmProcess {
    pub control: Control,
    /// What happens in it by itself; the end of the process is the end of this.
    pub events: mpsc::Receiver<Event>,
    handle: Handle,
    /// After the process.
    leaf: Option<Leaf>,
}

/// By what the process is known here.
#[derive(Debug)]
enum Handle {
    Child(Child),
    /// A zygote's child, which nobody here may wait for.
    Forked {
        pid: u32,
        pidfd: AsyncPidfd,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{} cannot be started", program.display())]
    Program { program: PathBuf, source: io::Error },
    #[error("a control socket cannot be made")]
    Socket(#[from] ChannelError),
    #[error("a control socket cannot be waited for")]
    Wait(#[source] io::Error),
}

/// How a process has ended. Only the parent of a process is told its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended(pub Option<ExitStatus>);

impl fmt::Display for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(status) => status.fmt(formatter),
            None => formatter.write_str("a status that its zygote knows"),
        }
    }
}

impl VmProcess {
    /// Starts `forkd-vmm`, which has no VM yet.
    pub fn start(program: &Path) -> Result<VmProcess, StartError> {
        let (ours, theirs) = Channel::pair()?;
        let child = Command::new(program)
            .arg("run")
            .stdin(Stdio::from(theirs.into_inner()))
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(|source| StartError::Program { program: program.into(), source })?;
        let (control, events) = Control::new(ours).map_err(StartError::Wait)?;
        Ok(VmProcess { control, events, handle: Handle::Child(child), leaf: None })
    }

    /// Keeps a process that has done nothing yet within these limits, as a build's guest.
    pub fn limit(&mut self, cgroups: &Cgroups, quota: &Quota) -> Result<(), CgroupError> {
        if let Some(pid) = self.id() {
            self.leaf = Some(Leaf::of_build(cgroups, pid, quota)?);
        }
        Ok(())
    }

    /// Takes over a process that a zygote has forked.
    pub(crate) fn forked(pid: i32, pidfd: OwnedFd, channel: Channel) -> Result<VmProcess, StartError> {
        let pidfd = AsyncPidfd::new(pidfd).map_err(StartError::Wait)?;
        let (control, events) = Control::new(channel).map_err(StartError::Wait)?;
        let handle = Handle::Forked { pid: pid.unsigned_abs(), pidfd };
        Ok(VmProcess { control, events, handle, leaf: None })
    }

    /// Its id, while it lives.
    pub fn id(&self) -> Option<u32> {
        match &self.handle {
            Handle::Child(child) => child.id(),
            Handle::Forked { pid, .. } => Some(*pid),
        }
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> io::Result<Ended> {
        match &mut self.handle {
            Handle::Child(child) => Ok(Ended(Some(child.wait().await?))),
            Handle::Forked { pidfd, .. } => pidfd.ended().await.map(|()| Ended(None)),
        }
    }
}

impl Drop for VmProcess {
    fn drop(&mut self) {
        if let Handle::Forked { pidfd, .. } = &self.handle {
            // It may have ended already.
            let _ = pidfd.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    /// A process of somebody else's, by its descriptor.
    fn forked(child: &std::process::Child) -> (VmProcess, Channel) {
        let pid = Pid::from_child(child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let (ours, theirs) = Channel::pair().unwrap();
        (VmProcess::forked(pid.as_raw_nonzero().get(), pidfd, ours).unwrap(), theirs)
    }

    fn sleeping() -> std::process::Child {
        std::process::Command::new("sleep").arg("60").spawn().unwrap()
    }

    #[tokio::test]
    async fn a_forked_process_ends_with_its_value() {
        let mut child = sleeping();
        let (process, _theirs) = forked(&child);
        assert_eq!(process.id(), Some(child.id()));
        drop(process);
        assert!(!child.wait().unwrap().success());
    }

    #[tokio::test]
    async fn the_end_of_a_forked_process_is_seen() {
        let mut child = sleeping();
        let (mut process, _theirs) = forked(&child);
        let early = tokio::time::timeout(std::time::Duration::from_millis(20), process.ended()).await;
        assert!(early.is_err(), "{early:?}");
        child.kill().unwrap();
        assert_eq!(process.ended().await.unwrap(), Ended(None));
        assert_eq!(process.ended().await.unwrap(), Ended(None), "and is seen again");
        child.wait().unwrap();
    }
}
