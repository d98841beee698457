//! `/forkd/identity`, `/forkd/close` and `/forkd/open`: the host's calls around a fork.

use std::sync::Arc;
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::apply::{IdentityError, apply};
use crate::agent::Agent;
use crate::runtime::blocking;
use forkd_proto::agent::identity::{CloseResponse, IdentityRequest, IdentityResponse};
use forkd_proto::agent::{Header, VERSION};

const MAX_BODY: usize = 1 << 20;
/// How long the guest's disk may take for what is still in memory.
const SYNC_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("invalid identity request: {0}")]
    Body(String),
    #[error("this agent speaks version {VERSION}, not {0}")]
    Version(u32),
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

pub async fn identity(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, CallError> {
    let wrong = |error: &dyn std::error::Error| CallError::Body(error.to_string());
    let bytes = to_bytes(request.into_body(), MAX_BODY).await.map_err(|error| wrong(&error))?;
    Ok(axum::Json(take(&agent, &bytes, Duration::ZERO).await?).into_response())
}

/// Takes the identity in a message. `delay` is how long it was on its way.
pub async fn take(agent: &Arc<Agent>, bytes: &[u8], delay: Duration) -> Result<IdentityResponse, CallError> {
    let wrong = |error: &dyn std::error::Error| CallError::Body(error.to_string());
    let header: Header = serde_json::from_slice(bytes).map_err(|error| wrong(&error))?;
    if header.version != VERSION {
        return Err(CallError::Version(header.version));
    }
    let mut asked: IdentityRequest = serde_json::from_slice(bytes).map_err(|error| wrong(&error))?;
    let delay = u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
    asked.unix_time_ns = asked.unix_time_ns.map(|time| time.saturating_add(delay));
    // A task of its own: a host that goes away must not leave half an identity and a closed gate.
    let agent = Arc::clone(agent);
    let applied = tokio::spawn(async move { apply(&agent, asked).await }).await;
    Ok(applied.map_err(|error| wrong(&error))??)
}

/// What cannot be frozen is reported, and does not prevent the fork.
///
/// What is written by then goes to the disk first. A guest that is frozen with dirty files has a flusher that is due: every child
/// would walk the same list and write the same blocks again, each to a disk of its own.
pub async fn close(State(agent): State<Arc<Agent>>) -> axum::Json<CloseResponse> {
    agent.gate.close();
    // A fork of a guest where that is not possible writes to the disk.
    let _ = agent.guest.prepare_for_forks();
    sync(&agent).await;
    let problem = agent.children.freeze().await.err().map(|error| error.to_string());
    axum::Json(CloseResponse { version: VERSION, frozen: problem.is_none(), problem })
}

/// While programs still run: a file system may be one of them. A disk that takes too long is synced in the background.
async fn sync(agent: &Arc<Agent>) {
    let agent = Arc::clone(agent);
    let synced = blocking(move || agent.guest.sync());
    // Without it, children are only slower.
    let _ = tokio::time::timeout(SYNC_LIMIT, synced).await;
}

pub async fn open(State(agent): State<Arc<Agent>>) -> StatusCode {
    agent.children.thaw().await;
    agent.gate.open();
    StatusCode::NO_CONTENT
}

impl IntoResponse for CallError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Identity(IdentityError::Stale { .. }) => StatusCode::CONFLICT,
            _ => StatusCode::BAD_REQUEST,
        };
        (status, axum::Json(json!({ "code": status.as_u16(), "message": self.to_string() }))).into_response()
    }
}
