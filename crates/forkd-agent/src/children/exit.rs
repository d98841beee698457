//! Waiting for the end of a process.

use forkd_envd::Exit;
use rustix::process::WaitStatus;
use tokio::sync::watch;

/// Nothing when the process has only stopped.
pub(super) fn exit_of(status: WaitStatus) -> Option<Exit> {
    status.exit_status().map(Exit::Code).or_else(|| status.terminating_signal().map(Exit::Signal))
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
            // The reaper is gone, and with it the runtime: the status is lost.
            None => std::future::pending().await,
        }
    }
}
