//! `GET /envs`: the sandbox's environment.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;

use crate::agent::Agent;

pub async fn envs(State(agent): State<Arc<Agent>>) -> Json<BTreeMap<String, String>> {
    Json(agent.settings().environment)
}
