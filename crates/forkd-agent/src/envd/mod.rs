//! The envd protocol: processes, files and the sandbox's settings.

mod health;

use std::sync::Arc;

use axum::Router;
use axum::routing::get;

use crate::agent::Agent;

pub fn router(agent: Arc<Agent>) -> Router {
    Router::new().route("/health", get(health::health)).with_state(agent)
}
