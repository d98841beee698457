//! How long sandboxes live, and when they stand still.

use std::time::{Duration, SystemTime};

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use forkd_api::error::ErrorCode;
use forkd_engine::{SandboxHandle, SandboxState};
use forkd_proto::agent::VERSION;
use forkd_proto::agent::account::{Account, AccountRequest};
use serde_json::{Value, json};

use super::about::{About, TIMEOUT};
use super::domain;
use super::models::{Body, Connect, Refresh, Sandbox, SetTimeout};
use super::sandboxes::{Made, find, time};
use crate::app::Shared;
use crate::audit::Sandboxes;
use crate::auth::Caller;
use crate::error::{Answer, ApiError};
use crate::extract::{Json, Path};
use crate::routes::checks::malformed;
use crate::routes::sandboxes::change::from_now;

/// How long a guest may take to set its clock.
const CLOCK: Duration = Duration::from_secs(5);
/// And to make an account.
const ACCOUNT: Duration = Duration::from_secs(30);

/// From now on, it lives so long.
pub(super) async fn set_timeout(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(wanted): Body<SetTimeout>,
) -> Answer<StatusCode> {
    let seconds = wanted.timeout.ok_or_else(|| malformed("timeout is missing"))?;
    let seconds = time("timeout", Some(seconds), TIMEOUT)?;
    let sandbox = find(&app, &caller, &id)?;
    let _turn = app.e2b.turns.take(&id).await;
    if sandbox.view().state == SandboxState::Paused {
        return Err(
            ApiError::new(ErrorCode::NotFound, format!("sandbox {id} is paused")).hint("connect to it first")
        );
    }
    sandbox.set_expiry(Some(from_now(seconds))).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// It lives so long at least.
pub(super) async fn refresh(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(wanted): Body<Refresh>,
) -> Answer<StatusCode> {
    let seconds = time("duration", wanted.duration, TIMEOUT)?;
    extend(&find(&app, &caller, &id)?, seconds).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Never takes time away. What has no end gets none.
async fn extend(sandbox: &SandboxHandle, seconds: u64) -> Answer<()> {
    let wanted = from_now(seconds);
    if sandbox.view().record.expires_unix_ms.is_some_and(|end| end < wanted) {
        sandbox.set_expiry(Some(wanted)).await?;
    }
    Ok(())
}

/// Stops it where it is. It has no end from then on, and its memory stays.
pub(super) async fn pause(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(_): Body<Value>,
) -> Answer<StatusCode> {
    let sandbox = find(&app, &caller, &id)?;
    let work = app.clone();
    // Whoever goes away in between leaves neither half a pause nor a sandbox without an end.
    app.to_its_end(async move {
        let _turn = work.e2b.turns.take(&id).await;
        if sandbox.view().state == SandboxState::Paused {
            return Err(ApiError::new(ErrorCode::WrongState, format!("sandbox {id} is already paused")));
        }
        sandbox.pause_for_good().await?;
        Ok(StatusCode::NO_CONTENT)
    })
    .await?
}

/// A sandbox that runs goes on at least so long (200); one that stands still goes on (201).
pub(super) async fn connect(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Body(wanted): Body<Connect>,
) -> Answer<Made> {
    if wanted.memory == Some(false) {
        return Err(malformed("a paused sandbox always keeps its memory: it cannot be booted anew"));
    }
    let seconds = time("timeout", wanted.timeout, TIMEOUT)?;
    let sandbox = find(&app, &caller, &id)?;
    let status = match wake(&app, &id, &sandbox, seconds).await? {
        true => StatusCode::CREATED,
        false => {
            extend(&sandbox, seconds).await?;
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
    state: State<Shared>,
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

/// Lets a sandbox that stands still go on, for so long. Returns whether it stood still.
pub(super) async fn wake(app: &Shared, id: &str, sandbox: &SandboxHandle, seconds: u64) -> Answer<bool> {
    let (work, sandbox, id) = (app.clone(), sandbox.clone(), id.to_owned());
    app.to_its_end(async move {
        let _turn = work.e2b.turns.take(&id).await;
        if sandbox.view().state != SandboxState::Paused {
            return Ok(false);
        }
        sandbox.resume_until(Some(from_now(seconds))).await?;
        set_clock(&sandbox).await;
        Ok(true)
    })
    .await?
}

/// A sandbox that was made otherwise has no user that E2B's programs expect. One whose agent does not know how to make it, or
/// that has no room for it, is as good as it is.
async fn add_account(sandbox: &SandboxHandle) {
    let Ok(agent) = sandbox.answering_agent() else { return };
    let request = AccountRequest { version: VERSION, account: Account::e2b() };
    if let Err(error) = agent.post::<Value>("/forkd/account", &request, ACCOUNT).await {
        let id = sandbox.view().record.id;
        tracing::warn!(%id, %error, "the guest could not be given E2B's user");
    }
}

/// A guest that stood still does not know for how long. One that cannot be told goes on with a clock that is late.
async fn set_clock(sandbox: &SandboxHandle) {
    let Ok(agent) = sandbox.answering_agent() else { return };
    let now = humantime::format_rfc3339_nanos(SystemTime::now()).to_string();
    let told = agent.post::<Value>("/init", &json!({ "timestamp": now }), CLOCK).await;
    if let Err(error) = told {
        tracing::debug!(%error, "a guest did not set its clock");
    }
}
