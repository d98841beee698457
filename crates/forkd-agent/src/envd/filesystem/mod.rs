//! `filesystem.Filesystem`: entries, directories and watchers.
//!
//! The client owns the sandbox, so no path is forbidden to it: what is done is done by the agent, and what is made belongs to
//! the user that was named.

mod create_watcher;
mod entry;
mod get_watcher_events;
mod list_dir;
mod make_dir;
mod owned;
mod remove;
mod remove_watcher;
mod rename;
mod stat;
mod watch;
mod watch_dir;
mod watchers;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::post;
use forkd_envd::connect::ConnectError;
use forkd_envd::filesystem as messages;

pub use owned::{make_parents, own};
pub use watchers::Watchers;

use super::{caller, paths};
use crate::agent::Agent;
use crate::users::User;

pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route(messages::STAT, post(stat::stat))
        .route(messages::LIST_DIR, post(list_dir::list_dir))
        .route(messages::MAKE_DIR, post(make_dir::make_dir))
        .route(messages::MOVE, post(rename::rename))
        .route(messages::REMOVE, post(remove::remove))
        .route(messages::WATCH_DIR, post(watch_dir::watch_dir))
        .route(messages::CREATE_WATCHER, post(create_watcher::create_watcher))
        .route(messages::GET_WATCHER_EVENTS, post(get_watcher_events::get_watcher_events))
        .route(messages::REMOVE_WATCHER, post(remove_watcher::remove_watcher))
}

/// Whose call it is, and where its relative paths begin.
#[derive(Debug, Clone)]
struct Caller {
    user: User,
    workdir: Option<PathBuf>,
}

impl Caller {
    async fn new(agent: &Agent, headers: &HeaderMap) -> Result<Self, ConnectError> {
        Ok(Self { user: caller::user(agent, headers).await?, workdir: agent.settings().default_workdir })
    }

    fn resolve(&self, path: &str) -> Result<PathBuf, ConnectError> {
        paths::resolve(path, &self.user, self.workdir.as_deref())
            .map_err(|error| ConnectError::invalid(error.to_string()))
    }
}
