//! `/forkd/config` and `/forkd/ready`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::{StartupError, configure};
use crate::agent::Agent;
use forkd_proto::agent::startup::{ConfigRequest, ReadyResponse};
use forkd_proto::agent::{Header, VERSION};

const MAX_BODY: usize = 1 << 20;
const MAX_WAIT: Duration = Duration::from_secs(300);

#[derive(Debug, Deserialize)]
pub struct ReadyQuery {
    #[serde(default)]
    wait_ms: u64,
}

pub async fn config(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let bytes = match to_bytes(request.into_body(), MAX_BODY).await {
        Ok(bytes) => bytes,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match serde_json::from_slice(&bytes) {
        Ok(Header { version: VERSION }) => {}
        Ok(Header { version }) => {
            let message = format!("this agent speaks version {VERSION}, not {version}");
            return refuse(StatusCode::BAD_REQUEST, &message);
        }
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    }
    let config: ConfigRequest = match serde_json::from_slice(&bytes) {
        Ok(config) => config,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    match configure(&agent, config) {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error @ StartupError::Configured) => refuse(StatusCode::CONFLICT, &error.to_string()),
        Err(error) => refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    }
}

pub async fn ready(State(agent): State<Arc<Agent>>, Query(query): Query<ReadyQuery>) -> Json<ReadyResponse> {
    let status = agent.startup.wait(Duration::from_millis(query.wait_ms).min(MAX_WAIT)).await;
    Json(ReadyResponse { version: VERSION, state: status.state, detail: status.detail })
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "code": status.as_u16(), "message": message }))).into_response()
}
