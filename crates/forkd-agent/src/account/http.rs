//! `/forkd/account`: the host's call for a sandbox that runs without the account.

use std::sync::Arc;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use forkd_proto::agent::account::AccountRequest;
use forkd_proto::agent::{Header, VERSION};
use serde_json::json;

use super::adopt;
use crate::agent::Agent;
use crate::identity::GuestError;

const MAX_BODY: usize = 64 << 10;

pub async fn account(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let asked = match read(request).await {
        Ok(asked) => asked,
        Err(message) => return refuse(StatusCode::BAD_REQUEST, &message),
    };
    match adopt(&agent, asked.account).await {
        // A system that the agent does not own is not changed.
        Ok(()) | Err(GuestError::Foreign) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn read(request: Request) -> Result<AccountRequest, String> {
    let bytes = to_bytes(request.into_body(), MAX_BODY).await.map_err(|error| error.to_string())?;
    let Header { version } = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if version != VERSION {
        return Err(format!("this agent speaks version {VERSION}, not {version}"));
    }
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "code": status.as_u16(), "message": message }))).into_response()
}
