//! `CloseStdin`: the process reads an end of file.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::process::SelectRequest;

use super::input::precondition;
use crate::agent::Agent;
use crate::connect::unary;

pub async fn close_stdin(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: SelectRequest| async move {
        let process = agent.processes.running(&message.process)?;
        if process.terminal.is_some() {
            return Err(precondition("a terminal is not closed: send it Ctrl+D (0x04)"));
        }
        process.inputs.close().await;
        Ok(Empty {})
    })
    .await
}
