//! `SendSignal`: to the process and to everything in its process group.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::connect::ConnectError;
use forkd_envd::process::SendSignalRequest;

use crate::agent::Agent;
use crate::connect::unary;

pub async fn send_signal(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: SendSignalRequest| async move {
        let signal = message.signal()?;
        let process = agent.processes.running(&message.process)?;
        let gone = || ConnectError::not_found(format!("process with pid {} has ended", process.pid));
        agent.children.signal_group(process.pid, signal.into()).await.map_err(|_| gone())?;
        Ok(Empty {})
    })
    .await
}
