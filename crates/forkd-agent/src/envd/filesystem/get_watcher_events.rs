//! `GetWatcherEvents`: what has happened since the last time.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::filesystem::{WatcherEvents, WatcherId};

use crate::agent::Agent;
use crate::connect::unary;

pub async fn get_watcher_events(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    unary(request, |message: WatcherId| async move {
        Ok(WatcherEvents { events: agent.watchers.drain(&message.watcher_id)? })
    })
    .await
}
