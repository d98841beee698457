//! The process that writes a snapshot, as seen by the task that waits for it: at lower priority than guests, until a request
//! waits for the snapshot. It ends with the writing.
//!
//! ```text
//!   begins ──▶ a fifth of a sandbox's share ──▶ after half a minute, a half
//!                         └─── a request waits for the snapshot ────┴──▶ all of it
//! ```

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::process::Pid;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::blocking::in_place;
use crate::limits::cgroup::Cgroups;
use crate::limits::quota::WEIGHT;
use crate::priority::{self, Priority};
use crate::process::is_living_child;

/// A snapshot that is not on disk keeps its memory, so it is written some day on a host that is never idle.
const STANDING_BACK: Duration = Duration::from_secs(30);
const LATE_WEIGHT: u16 = WEIGHT / 2;

/// Whether a request waits for a snapshot.
#[derive(Debug)]
pub(super) struct Awaited {
    told: watch::Receiver<bool>,
    late: Instant,
}

impl Awaited {
    /// As the other end says, from now on.
    pub fn new(told: watch::Receiver<bool>) -> Awaited {
        Awaited { told, late: Instant::now() + STANDING_BACK }
    }

    /// Until a request waits for it.
    pub async fn asked_for(&self) {
        if self.told.clone().wait_for(|awaited| *awaited).await.is_err() {
            // No request can any more.
            std::future::pending().await
        }
    }

    /// Until it has been written for long.
    async fn late(&self) {
        tokio::time::sleep_until(self.late).await;
    }

    /// Until either.
    pub async fn wanted(&self) {
        tokio::select! {
            () = self.asked_for() => {}
            () = self.late() => {}
        }
    }
}

/// The process. Dropped, it ends.
pub(super) struct Writer {
    /// Its own, which it begins in. Without one it is in its zygote's, and ends when it notices.
    cgroup: Option<(Cgroups, String)>,
    process: Option<Process>,
}

struct Process {
    pid: i32,
    pidfd: OwnedFd,
    parent: i32,
}

impl Writer {
    /// Before there is a process.
    pub fn new(cgroup: Option<(Cgroups, String)>) -> Writer {
        Writer { cgroup, process: None }
    }

    /// The process is there, as its parent says.
    pub fn begun(&mut self, parent: i32, pid: i32, pidfd: OwnedFd) {
        self.process = Some(Process { pid, pidfd, parent });
        if priority::can_be_taken_back() {
            self.set_priority(Priority::Least);
        }
    }

    /// Runs it at low priority until a request waits for its snapshot. Never returns.
    pub async fn stand_back(&self, awaited: &Awaited) -> Infallible {
        tokio::select! {
            biased;
            () = awaited.asked_for() => {}
            () = awaited.late() => {
                self.hasten(LATE_WEIGHT);
                awaited.asked_for().await;
            }
        }
        self.hasten(WEIGHT);
        std::future::pending().await
    }

    fn hasten(&self, weight: u16) {
        if let Some((cgroups, name)) = &self.cgroup {
            cgroups.hasten(name, weight);
        }
        self.set_priority(Priority::Usual);
    }

    /// What its parent says may be a lie, which must not affect others.
    fn set_priority(&self, wanted: Priority) {
        let Some(Process { pid, pidfd, parent }) = &self.process else { return };
        if let Some(number) = Pid::from_raw(*pid)
            && in_place(|| is_living_child(*pid, pidfd, *parent))
        {
            // It may have ended.
            let _ = priority::set(number, wanted);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let Some((cgroups, name)) = self.cgroup.take() else { return };
        // It has done its work, or is of no use. What it wrote to is not to be written to any more.
        cgroups.kill(&name);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { cgroups.remove(&name).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::fs;
    use std::process::Command;

    use rustix::process::{PidfdFlags, pidfd_open};

    use crate::limits::cgroup::testing::{FILES, QUOTA, leaf, tree};
    use crate::priority::testing::nice_of;

    #[tokio::test(start_paused = true)]
    async fn a_writer_stands_back_for_a_while_or_until_it_is_asked_for() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        leaf(tree.path(), "writer-a", &FILES);
        cgroups.make_standing_back("writer-a", &QUOTA).unwrap();
        let weight = || fs::read_to_string(tree.path().join("forkd/writer-a/cpu.weight")).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let open = || pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let back = priority::can_be_taken_back();

        let mut writer = Writer::new(Some((cgroups, "writer-a".into())));
        writer.begun(1, pid, open());
        assert_ne!(nice_of(pid), 19, "it is another's child");
        writer.begun(own, pid, open());
        assert_eq!(nice_of(pid) == 19, back);

        let (ask, told) = watch::channel(false);
        let awaited = Awaited::new(told);
        let within =
            |seconds| tokio::time::timeout(Duration::from_secs(seconds), writer.stand_back(&awaited));
        assert!(within(29).await.is_err());
        assert_eq!((weight().as_str(), nice_of(pid) == 19), ("20", back));
        assert!(within(2).await.is_err());
        assert_eq!((weight().as_str(), nice_of(pid)), ("50", 0), "it is late");
        ask.send_replace(true);
        assert!(within(1).await.is_err());
        assert_eq!(weight(), "100");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
