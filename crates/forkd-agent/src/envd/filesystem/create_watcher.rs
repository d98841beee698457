//! `CreateWatcher`: events are kept until `GetWatcherEvents` takes them.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::filesystem::{WatchRequest, WatcherId};

use super::watch::Watch;
use super::{Caller, watch_dir};
use crate::agent::Agent;
use crate::connect::unary;

pub async fn create_watcher(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let headers = request.headers().clone();
    unary(request, |message: WatchRequest| async move {
        let path = Caller::new(&agent, &headers).await?.resolve(&message.path)?;
        let watch = Watch::open(path, watch_dir::options(&message)).await?;
        Ok(WatcherId { watcher_id: agent.watchers.insert(watch)? })
    })
    .await
}
