//! `Connect`: another stream of a process. What was printed before is not repeated.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::connect::ConnectError;
use forkd_envd::process::{KEEPALIVE, SelectRequest};

use super::subscribers::replay;
use super::table::Recent;
use crate::agent::Agent;
use crate::connect::{self, error_response};

pub async fn connect(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    serve(&agent, request).await.unwrap_or_else(|error| error_response(&error))
}

async fn serve(agent: &Agent, request: Request) -> Result<Response, ConnectError> {
    let (headers, message) = connect::read_request::<SelectRequest>(request).await?;
    let process = agent.processes.recent(&message.process)?;
    let (sender, response) = connect::respond(&headers, KEEPALIVE)?;
    match process {
        Recent::Running(process) => process.subscribers.add(sender).await,
        Recent::Ended(ended) => replay(ended.pid, ended.exit, sender).await,
    }
    Ok(response)
}
