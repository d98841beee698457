//! The orderly end of a guest: its processes are gone, and its disk is whole.

use std::time::Duration;

use forkd_proto::control::{Event, ExitReason};
use serde_json::Value;

use crate::agent::{Agent, AgentError};
use crate::boot::BootedVm;

const CALL: Duration = Duration::from_secs(30);

/// A guest did not end as it should, and its disk is of no use.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    #[error("cannot ask the guest to shut down")]
    Ask(#[source] AgentError),
    #[error("the guest did not shut down within {0:?}")]
    Timeout(Duration),
    #[error("the guest ended before it was asked to: {0}")]
    Unexpected(String),
}

/// Asks the guest to end, and waits until it has: its processes are gone, and its disk is whole and on the host's.
pub async fn shut_down(vm: BootedVm, limit: Duration) -> Result<(), EndError> {
    match ask_for_end(&vm.agent).await {
        Ok(()) => wait_for_end(vm, limit).await,
        // Its end may have come before its answer.
        Err(error) => wait_for_end(vm, CALL.min(limit)).await.map_err(|_| EndError::Ask(error)),
    }
}

/// Asks the guest to end.
pub async fn ask_for_end(agent: &Agent) -> Result<(), AgentError> {
    agent.post::<Value>("/forkd/shutdown", &Value::Null, CALL).await.map(drop)
}

/// Waits for the end of a guest that another task has asked to end.
pub async fn wait_for_end(mut vm: BootedVm, limit: Duration) -> Result<(), EndError> {
    let orderly = async {
        let mut last = None;
        while let Some(event) = vm.events.recv().await {
            last = Some(event);
        }
        vm.process.ended().await;
        match last {
            Some(Event::Exited { reason: ExitReason::Shutdown, .. }) => Ok(()),
            other => Err(EndError::Unexpected(format!("{other:?}"))),
        }
    };
    tokio::time::timeout(limit, orderly).await.map_err(|_| EndError::Timeout(limit))?
}
