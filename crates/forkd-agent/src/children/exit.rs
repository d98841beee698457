//! How a process ended, and waiting for that.

use rustix::process::WaitStatus;
use tokio::sync::watch;

use super::Signal;

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    /// Nothing when the process has only stopped.
    pub(super) fn from_status(status: WaitStatus) -> Option<Self> {
        status.exit_status().map(Self::Code).or_else(|| status.terminating_signal().map(Self::Signal))
    }

    /// As E2B's envd words it: `exit status 3`, `signal: killed`.
    pub fn describe(self) -> String {
        match self {
            Self::Code(code) => format!("exit status {code}"),
            Self::Signal(number) => format!("signal: {}", Signal::describe(number)),
        }
    }
}

/// Waits for one process. Clones wait for the same.
#[derive(Debug, Clone)]
pub struct ExitWatch(pub(super) watch::Receiver<Option<Exit>>);

impl ExitWatch {
    /// Waits for the exit, and is ready at once after it.
    pub async fn wait(&mut self) -> Exit {
        let exit = self.0.wait_for(Option::is_some).await.ok().and_then(|exit| *exit);
        match exit {
            Some(exit) => exit,
            // The reaper is gone, and with it the runtime: nobody will ever know.
            None => std::future::pending().await,
        }
    }
}
