//! Sandboxes are changed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::error::ErrorBody;
use forkd_api::sandbox::{BranchSandbox, Egress, MAX_TTL_SECS, Rollback, Sandbox, SetBandwidth, SetTtl};
use forkd_api::snapshot::Snapshot;
use forkd_engine::{Branched, EngineError, Expiry, NetworkChange, SandboxHandle, SnapshotHandle};
use forkd_store::Tag;

use super::create::MAX_BANDWIDTH_MIB;
use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::egress;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::routes::checks::within;
use crate::routes::responses::{NetworkErrors, SandboxErrors};
use crate::routes::snapshots;
use crate::trace::RequestTrace;
use crate::views;

fn shown(sandbox: &SandboxHandle) -> Json<Sandbox> {
    Json(views::sandbox(&sandbox.view()))
}

/// Pauses a sandbox. Has no effect on one that is paused.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/pause",
    tag = "sandboxes",
    operation_id = "pause_sandbox",
    params(("id" = String, Path)),
    responses((status = 200, description = "The paused sandbox", body = Sandbox), SandboxErrors)
)]
pub(super) async fn pause(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    let sandbox = app.sandbox(&caller, &id)?;
    sandbox.pause().await?;
    Ok(shown(&sandbox))
}

/// Resumes a sandbox. Has no effect on one that is running.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/resume",
    tag = "sandboxes",
    operation_id = "resume_sandbox",
    params(("id" = String, Path)),
    responses((status = 200, description = "The running sandbox", body = Sandbox), SandboxErrors)
)]
pub(super) async fn resume(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    let sandbox = app.sandbox(&caller, &id)?;
    sandbox.resume().await?;
    Ok(shown(&sandbox))
}

/// Makes a snapshot of a sandbox, which keeps running.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/branch",
    tag = "sandboxes",
    operation_id = "branch_sandbox",
    params(
        ("id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer"),
    ),
    request_body = BranchSandbox,
    responses(
        (status = 201, description = "The snapshot: it can be forked, and with `wait` it is on disk", body = Snapshot),
        (status = 400, description = "Invalid tag: expected 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit", body = ErrorBody),
        (status = 404, description = "No sandbox has this id", body = ErrorBody),
        (status = 409, description = "The tag is in use, or the sandbox has ended", body = ErrorBody),
        (status = 429, description = "The branch's memory exceeds the limit of the token or project", body = ErrorBody),
        (status = 507, description = "Not enough memory on the host", body = ErrorBody),
    )
)]
pub(super) async fn branch(
    State(app): State<Shared>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<BranchSandbox>,
) -> Answer<(StatusCode, Json<Snapshot>)> {
    forkd_proto::passes!();
    let sandbox = app.sandbox(&caller, &id)?;
    let tag = wanted.tag.map(|tag| tag.parse()).transpose().map_err(EngineError::Tag)?;
    let branch = branch_of(&app, &sandbox, tag, &caller).await?;
    let view = match wanted.wait {
        true => branch.durable().await?,
        false => branch.view(),
    };
    Ok((StatusCode::CREATED, Json(snapshots::describe(&app, &caller, view).await?)))
}

/// Branches a sandbox, and measures its pause.
pub async fn branch_of(
    app: &App,
    sandbox: &SandboxHandle,
    tag: Option<Tag>,
    caller: &Caller,
) -> Answer<SnapshotHandle> {
    let owner = app.owner(caller, sandbox.view().record.project);
    let Branched { snapshot, laps } = sandbox.branch_for(tag, Some(owner)).await?;
    let pause = snapshot.view().record.pause_us.map(Duration::from_micros);
    RequestTrace::current().branched(&laps, pause);
    if let Some(pause) = pause {
        app.metrics.engine.branched(pause);
    }
    Ok(snapshot)
}

/// Rolls a sandbox back to one of its own branches. It keeps its id and its expiry. Later branches remain as snapshots, but the
/// sandbox can no longer be rolled back to them.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/rollback",
    tag = "sandboxes",
    operation_id = "rollback_sandbox",
    params(("id" = String, Path)),
    request_body = Rollback,
    responses(
        (status = 200, description = "The sandbox, running from the branch", body = Sandbox),
        (status = 400, description = "Invalid tag: expected 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit", body = ErrorBody),
        (status = 404, description = "Sandbox not found, or its branch was removed", body = ErrorBody),
        (status = 409, description = "The snapshot is not a branch of this sandbox, or the sandbox has ended", body = ErrorBody),
    )
)]
pub(super) async fn rollback(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(wanted): Json<Rollback>,
) -> Answer<Json<Sandbox>> {
    let sandbox = app.sandbox(&caller, &id)?;
    let named: Tag = wanted.tag.parse().map_err(EngineError::Tag)?;
    let tag = app.snapshot(&caller, named.as_str()).map_or(named, |snapshot| snapshot.tag());
    if let Err(error) = sandbox.rollback(tag.clone()).await {
        // Of what is another's, not even that it is not a branch.
        if matches!(error, EngineError::NotItsBranch { .. }) {
            app.snapshot(&caller, tag.as_str())?;
        }
        return Err(error.into());
    }
    Ok(shown(&sandbox))
}

/// Changes what a sandbox may reach. Takes effect at once: connections that are no longer allowed are closed.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/egress",
    tag = "sandboxes",
    operation_id = "set_sandbox_egress",
    params(("id" = String, Path)),
    request_body = Egress,
    responses((status = 200, description = "The sandbox with its new egress rules", body = Sandbox), NetworkErrors)
)]
pub(super) async fn set_egress(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(wanted): Json<Egress>,
) -> Answer<Json<Sandbox>> {
    let sandbox = app.sandbox(&caller, &id)?;
    sandbox.change_network(NetworkChange::Egress(egress::convert(wanted)?)).await?;
    Ok(shown(&sandbox))
}

/// Changes the bandwidth of a sandbox. Takes effect at once.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/bandwidth",
    tag = "sandboxes",
    operation_id = "set_sandbox_bandwidth",
    params(("id" = String, Path)),
    request_body = SetBandwidth,
    responses((status = 200, description = "The sandbox with its new bandwidth", body = Sandbox), NetworkErrors)
)]
pub(super) async fn set_bandwidth(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(wanted): Json<SetBandwidth>,
) -> Answer<Json<Sandbox>> {
    let sandbox = app.sandbox(&caller, &id)?;
    let mib =
        wanted.bandwidth_mib.map(|mib| within("bandwidth_mib", mib, 1..=MAX_BANDWIDTH_MIB)).transpose()?;
    sandbox.change_network(NetworkChange::Bandwidth(mib.map(|mib| mib << 20))).await?;
    Ok(shown(&sandbox))
}

/// Changes when a sandbox expires.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/ttl",
    tag = "sandboxes",
    operation_id = "set_sandbox_ttl",
    params(("id" = String, Path)),
    request_body = SetTtl,
    responses((status = 200, description = "The sandbox with its new expiry", body = Sandbox), SandboxErrors)
)]
pub(super) async fn set_ttl(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(wanted): Json<SetTtl>,
) -> Answer<Json<Sandbox>> {
    let sandbox = app.sandbox(&caller, &id)?;
    let seconds = wanted.ttl_secs.map(|seconds| within("ttl_secs", seconds, 1..=MAX_TTL_SECS)).transpose()?;
    sandbox.set_expiry(Expiry::At(seconds.map(from_now))).await?;
    Ok(shown(&sandbox))
}

/// So many seconds from now, as the engine counts time.
pub fn from_now(seconds: u64) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let then = now.saturating_add(Duration::from_secs(seconds));
    u64::try_from(then.as_millis()).unwrap_or(u64::MAX)
}
