//! The end of a sandbox, as requests that run then are told of it.

use std::fmt;
use std::fs;
use std::time::Duration;

use crate::limits::cgroup::task_flags;
use crate::sandbox::{End, EndReason, SandboxHandle, SandboxState};

/// `PF_EXITING` of the kernel's task flags.
const EXITING: u64 = 0x4;
/// What a VM process that ends takes until that is known: the kernel first gives back the guest's memory.
const ENDING: Duration = Duration::from_secs(10);
/// What this daemon takes to learn of an end.
const LEARNING: Duration = Duration::from_millis(100);

impl fmt::Display for End {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            EndReason::Shutdown => "the guest shut down",
            EndReason::Reset => "the guest was reset",
            EndReason::KernelPanic => "the guest's kernel panicked",
            EndReason::Failed => "the VM failed",
            EndReason::Killed => "its process was killed",
            EndReason::OutOfMemory => "out of memory",
            EndReason::Expired => "its TTL expired",
        };
        match self.detail.as_str() {
            "" => formatter.write_str(reason),
            // Some details say nothing else.
            detail if detail == reason => formatter.write_str(reason),
            detail => write!(formatter, "{reason} ({detail})"),
        }
    }
}

impl SandboxHandle {
    /// Waits for the end of the sandbox, and says why it ended.
    pub async fn end(&self) -> String {
        let mut view = self.watch();
        match view.wait_for(|view| view.state == SandboxState::Ended).await {
            Ok(view) => view.end.as_ref().map(End::to_string).unwrap_or_default(),
            // Its owner is gone.
            Err(_) => "it was removed".into(),
        }
    }

    /// Why the sandbox has ended, for a request that has just failed. An end that is about to come is waited for; it is coming
    /// if the kernel says so of the process.
    pub async fn end_after_failure(&self) -> Option<String> {
        let patience = if is_ending(self.view().pid) { ENDING } else { LEARNING };
        tokio::time::timeout(patience, self.end()).await.ok()
    }
}

/// Whether a process has ended, or is about to.
pub(crate) fn is_ending(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => task_flags(&stat).is_none_or(|flags| flags & EXITING != 0),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_with_its_numbers() {
        let end = |reason, detail: &str| End { reason, detail: detail.into(), at_unix_ms: 0 }.to_string();
        assert_eq!(
            end(EndReason::OutOfMemory, "limit 592 MiB, peak 592 MiB"),
            "out of memory (limit 592 MiB, peak 592 MiB)"
        );
        assert_eq!(end(EndReason::Killed, "its process was killed"), "its process was killed");
        assert_eq!(end(EndReason::Expired, "its TTL expired"), "its TTL expired");
        assert_eq!(end(EndReason::Reset, ""), "the guest was reset");
    }

    #[test]
    fn a_process_that_runs_is_not_ending() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(!is_ending(own));
        assert!(is_ending(-1), "there is none");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        // Not waited for, it stays a zombie.
        let ended = (0..1000).any(|_| {
            std::thread::sleep(Duration::from_millis(5));
            is_ending(pid)
        });
        assert!(ended);
        child.wait().unwrap();
    }
}
