//! `RemoveWatcher`: the client needs no more events.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::Empty;
use forkd_envd::filesystem::WatcherId;

use crate::agent::Agent;
use crate::connect::unary;

pub async fn remove_watcher(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: WatcherId| async move {
        agent.watchers.remove(&message.watcher_id)?;
        Ok(Empty {})
    })
    .await
}
