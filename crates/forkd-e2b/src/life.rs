//! Expiry, pause and resume of sandboxes.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_engine::{EngineError, Expiry, SandboxHandle, SandboxState};
use forkd_proto::agent::VERSION;
use forkd_proto::agent::account::{Account, AccountRequest};
use serde_json::Value;

use super::about::{About, TIMEOUT};
use super::domain;
use super::models::{Body, Connect, Refresh, Sandbox, SetTimeout};
use super::sandboxes::{Made, find, time};
use crate::App;
use forkd_daemon::audit::Sandboxes;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::{Json, Path};
use forkd_daemon::operations::checks::malformed;
use forkd_daemon::operations::from_now;

/// How long a guest may take to make an account.
const ACCOUNT: Duration = Duration::from_secs(30);

/// From now on, it lives so long.
pub(super) async fn set_timeout(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(wanted): Body<SetTimeout>,
) -> Answer<StatusCode> {
    let seconds = wanted.timeout.ok_or_else(|| malformed("timeout is missing"))?;
    let seconds = time("timeout", Some(seconds), TIMEOUT)?;
    let sandbox = find(&app, &caller, &id)?;
    match sandbox.set_expiry(Expiry::OfRunning(from_now(seconds))).await {
        Err(EngineError::WrongState(_)) if sandbox.view().state == SandboxState::Paused => {
            let error = ApiError::new(ErrorCode::NotFound, format!("sandbox {id} is paused"));
            Err(error.hint(HintCode::ResumeFirst))
        }
        set => Ok(set.map(|()| StatusCode::NO_CONTENT)?),
    }
}

/// It lives so long at least.
pub(super) async fn refresh(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(wanted): Body<Refresh>,
) -> Answer<StatusCode> {
    let seconds = time("duration", wanted.duration, TIMEOUT)?;
    find(&app, &caller, &id)?.set_expiry(Expiry::AtLeast(from_now(seconds))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Stops it where it is. It has no end from then on, and its memory stays.
pub(super) async fn pause(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(_): Body<Value>,
) -> Answer<StatusCode> {
    match find(&app, &caller, &id)?.suspend().await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::new(ErrorCode::WrongState, format!("sandbox {id} is already paused"))),
    }
}

/// A sandbox that runs goes on at least so long (200); one that stands still goes on (201).
pub(super) async fn connect(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Body(wanted): Body<Connect>,
) -> Answer<Made> {
    if wanted.memory == Some(false) {
        return Err(malformed("a paused sandbox always keeps its memory: it cannot be rebooted"));
    }
    let seconds = time("timeout", wanted.timeout, TIMEOUT)?;
    let sandbox = find(&app, &caller, &id)?;
    let expires = from_now(seconds);
    let status = match sandbox.wake(Some(expires)).await? {
        true => StatusCode::CREATED,
        false => {
            sandbox.set_expiry(Expiry::AtLeast(expires)).await?;
            StatusCode::OK
        }
    };
    if !About::is_of(&sandbox.view().record) {
        add_account(&sandbox).await;
    }
    let shown = Sandbox::of(&sandbox.view(), &app.e2b.keys, domain(&headers));
    Ok((status, Extension(Sandboxes(vec![id])), Json(shown)))
}

/// As the first clients asked: one that runs is not resumed.
pub(super) async fn resume(
    state: State<App>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    wanted: Body<Connect>,
) -> Answer<Made> {
    let (status, ids, shown) = connect(state, caller, headers, Path(id.clone()), wanted).await?;
    match status {
        StatusCode::OK => {
            Err(ApiError::new(ErrorCode::WrongState, format!("sandbox {id} is already running")))
        }
        _ => Ok((status, ids, shown)),
    }
}

/// A sandbox that was made otherwise has no user that E2B's programs expect. One whose agent does not know how to make it, or
/// that has no room for it, is as good as it is.
async fn add_account(sandbox: &SandboxHandle) {
    let Ok(agent) = sandbox.answering_agent() else { return };
    let request = AccountRequest { version: VERSION, account: Account::e2b() };
    if let Err(error) = agent.post::<Value>("/forkd/account", &request, ACCOUNT).await {
        let id = sandbox.view().record.id;
        tracing::warn!(%id, %error, "cannot create E2B's user in the guest");
    }
}
