//! `SendInput`: bytes for a process. The answer comes when the process, or its pipe, has taken them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::process::SendInputRequest;

use crate::agent::Agent;
use crate::connect::unary;

pub async fn send_input(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: SendInputRequest| async move {
        agent.processes.running(&message.process)?.write(message.input).await?;
        Ok(Empty {})
    })
    .await
}
