//! `POST /init`: what the host tells a sandbox about itself. Only the host may reach it; its proxy refuses it to clients.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use forkd_envd::caller::same_secret;
use forkd_envd::init::InitRequest;
use rustix::time::{ClockId, Timespec, clock_settime};

use super::caller::token_is_right;
use super::rest::RestError;
use crate::agent::Agent;

const MAX_REQUEST: usize = 4 << 20;

pub async fn init(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    match serve(&agent, request).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => error.into_response(),
    }
}

async fn serve(agent: &Agent, request: Request) -> Result<(), RestError> {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_REQUEST).await;
    let body = body.map_err(|error| RestError::bad_request(error.to_string()))?;
    let body = if body.is_empty() { b"{}" } else { body.as_ref() };
    let request: InitRequest = serde_json::from_slice(body)
        .map_err(|error| RestError::bad_request(format!("not understood: {error}")))?;
    check(agent, &parts.headers, &request)?;
    if let Some(timestamp) = &request.timestamp {
        set_clock(agent, timestamp)?;
    }
    apply(agent, request);
    Ok(())
}

/// The first one is free; later ones know the token that holds.
fn check(agent: &Agent, headers: &HeaderMap, request: &InitRequest) -> Result<(), RestError> {
    let known = || {
        let (Some(now), Some(shown)) = (agent.settings().access_token, &request.access_token) else {
            return false;
        };
        same_secret(now.as_bytes(), shown.as_bytes())
    };
    if token_is_right(agent, headers) || known() {
        Ok(())
    } else {
        Err(RestError::unauthorized("the access token is missing or wrong"))
    }
}

fn apply(agent: &Agent, request: InitRequest) {
    agent.change(|settings| {
        settings.environment.extend(request.env_vars.unwrap_or_default());
        if let Some(token) = request.access_token {
            settings.access_token = Some(token).filter(|token| !token.is_empty());
        }
        if let Some(user) = request.default_user.filter(|user| !user.is_empty()) {
            settings.default_user = user;
        }
        if let Some(workdir) = request.default_workdir.filter(|workdir| workdir.starts_with('/')) {
            settings.default_workdir = Some(workdir.into());
        }
    });
}

/// The clock is the guest's only where the guest is ours.
fn set_clock(agent: &Agent, timestamp: &str) -> Result<(), RestError> {
    let wrong = || RestError::bad_request(format!("timestamp '{timestamp}' is not RFC 3339 in UTC"));
    let time: SystemTime = humantime::parse_rfc3339_weak(timestamp).map_err(|_| wrong())?;
    if !agent.owns_guest {
        return Ok(());
    }
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| wrong())?;
    let seconds = i64::try_from(since.as_secs()).map_err(|_| wrong())?;
    let time = Timespec { tv_sec: seconds, tv_nsec: since.subsec_nanos().into() };
    clock_settime(ClockId::Realtime, time).map_err(|error| RestError::system("the clock", &error.into()))
}
