//! The code interpreter's protocol.

use std::sync::Arc;

use axum::Router;

use crate::agent::Agent;

pub fn router(agent: Arc<Agent>) -> Router {
    Router::new().with_state(agent)
}
