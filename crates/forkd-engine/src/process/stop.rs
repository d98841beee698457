//! Stop: the daemon is about to end, and its VMs are not.
//!
//! Started operations are completed first, as long as their VM processes respond. Whatever waits for one that does not
//! is left as it is, as if the daemon had been killed: the next one finds what has become of it.

use std::os::fd::OwnedFd;
use std::time::Duration;

use forkd_proto::control::Command;

use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::process::VmProcess;
use crate::process::control::Answer;

/// A process that does not respond for so long is not waited for. A daemon ends within five seconds then.
pub(crate) const MUTE: Duration = Duration::from_secs(3);
/// Between two looks at a process.
const BETWEEN: Duration = Duration::from_millis(50);

impl Engine {
    /// Ends what waits for VM processes that do not answer, from now on.
    pub fn stop(&self) {
        self.shared.stopping.send_replace(true);
    }
}

impl Shared {
    /// Waits until the daemon is to stop and a process does not answer.
    pub(crate) async fn gives_up(&self, process: &VmProcess) {
        // The sender is here.
        let _ = self.stopping.subscribe().wait_for(|stopping| *stopping).await;
        while process.control.stuck_for() < MUTE {
            tokio::time::sleep(BETWEEN).await;
        }
    }

    /// Has a process do something that the daemon does not wait for when it is to stop.
    pub(crate) async fn call(
        &self,
        process: &VmProcess,
        command: Command,
        descriptors: &[OwnedFd],
    ) -> Result<Answer, EngineError> {
        Ok(self.unless_mute(process, process.control.call(command, descriptors)).await??)
    }

    /// Waits for something that a process does, unless the daemon is to stop and the process does not answer.
    pub(crate) async fn unless_mute<T>(
        &self,
        process: &VmProcess,
        work: impl Future<Output = T>,
    ) -> Result<T, EngineError> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.gives_up(process) => Err(EngineError::Stopping),
        }
    }
}
