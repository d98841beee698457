//! `SendSignal`: to the process and to everything in its process group.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;

use super::messages::{Empty, SendSignalRequest};
use crate::agent::Agent;
use crate::children::Signal;
use crate::connect::{ConnectError, unary};

pub async fn send_signal(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: SendSignalRequest| async move {
        let signal = signal(&message.signal)?;
        let process = agent.processes.running(&message.process)?;
        let gone = || ConnectError::not_found(format!("process with pid {} has ended", process.pid));
        agent.children.signal_group(process.pid, signal).await.map_err(|_| gone())?;
        Ok(Empty {})
    })
    .await
}

/// Protobuf's JSON has enums by name or by number; here the numbers are the system's.
fn signal(value: &Value) -> Result<Signal, ConnectError> {
    match (value.as_str(), value.as_u64()) {
        (Some("SIGNAL_SIGKILL"), _) | (_, Some(9)) => Ok(Signal::KILL),
        (Some("SIGNAL_SIGTERM"), _) | (_, Some(15)) => Ok(Signal::TERM),
        _ => {
            Err(ConnectError::invalid(format!("signal {value} is neither SIGNAL_SIGKILL nor SIGNAL_SIGTERM")))
        }
    }
}
