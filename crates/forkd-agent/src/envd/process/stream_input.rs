//! `StreamInput`: bytes for a process, as they come.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::connect::ConnectError;
use forkd_envd::process::StreamInputRequest;

use crate::agent::Agent;
use crate::connect::client_stream;

pub async fn stream_input(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    client_stream(request, |mut messages| async move {
        let mut process = None;
        while let Some(message) = messages.next::<StreamInputRequest>().await? {
            if let Some(start) = message.start {
                process = Some(agent.processes.running(&start.process)?);
            }
            if let Some(data) = message.data {
                let process = process.as_ref();
                let process = process
                    .ok_or_else(|| ConnectError::invalid("the first message must name the process"))?;
                process.write(data.input).await?;
            }
        }
        Ok(Empty {})
    })
    .await
}
