//! `List`: the processes that run.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::process::{ListResponse, ProcessInfo};

use crate::agent::Agent;
use crate::connect::unary;

pub async fn list(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |Empty {}| async move {
        let info = |process: &super::table::Process| ProcessInfo {
            config: process.config.clone(),
            pid: process.pid,
            tag: process.tag.clone(),
            terminal: process.terminal.is_some(),
        };
        Ok(ListResponse { processes: agent.processes.all().iter().map(|process| info(process)).collect() })
    })
    .await
}
