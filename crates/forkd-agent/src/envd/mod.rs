//! The envd protocol: processes, files and the sandbox's settings.

mod caller;
mod envs;
mod files;
mod filesystem;
mod health;
mod init;
mod metadata;
mod metrics;
mod paths;
mod process;
mod rest;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};
use forkd_envd::HEALTH;
use forkd_envd::init::INIT;
use forkd_envd::metrics::METRICS;

pub use caller::token_is_right;
pub use files::SharedBody;
pub use filesystem::Watchers;
pub use metrics::LastTimes;
pub use process::Processes;
pub use rest::RestError;

use crate::agent::Agent;

pub fn router(agent: Arc<Agent>) -> Router {
    Router::new()
        .route(HEALTH, get(health::health))
        .route("/envs", get(envs::envs))
        .route(INIT, post(init::init))
        .route(METRICS, get(metrics::metrics))
        .merge(files::routes())
        .merge(filesystem::routes())
        .merge(process::routes())
        .layer(from_fn_with_state(Arc::clone(&agent), caller::check_token))
        // Each reader of a body has its own limit; files have none but the disk.
        .layer(DefaultBodyLimit::disable())
        .with_state(agent)
}
