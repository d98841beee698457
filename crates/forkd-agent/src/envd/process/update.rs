//! `Update`: a terminal's new size.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::process::UpdateRequest;

use super::input::precondition;
use crate::agent::Agent;
use crate::connect::{system_error, unary};

pub async fn update(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: UpdateRequest| async move {
        let process = agent.processes.running(&message.process)?;
        if let Some(pty) = message.pty {
            let terminal =
                process.terminal.as_ref().ok_or_else(|| precondition("the process has no terminal"))?;
            terminal.resize(pty.size()?).map_err(|error| system_error("the terminal", &error))?;
        }
        Ok(Empty {})
    })
    .await
}
