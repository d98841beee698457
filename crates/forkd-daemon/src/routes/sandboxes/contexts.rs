//! The contexts that code runs in.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::code::{CodeContext, CreateCodeContext, Interrupt, Interrupted};
use forkd_api::error::ErrorBody;
use forkd_engine::contexts;
use forkd_envd::interpreter::{ContextInfo, CreateContextRequest};

use crate::app::Shared;
use crate::auth::Caller;
use crate::during::during;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::routes::checks::{malformed, within};
use crate::routes::responses::{AgentErrors, GuestErrors};

const MAX_PATH: usize = 4096;
const LONGEST_GRACE_SECS: u64 = 300;

/// Lists the contexts of a sandbox's interpreters.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/contexts",
    tag = "code",
    operation_id = "list_contexts",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The contexts, by name", body = Vec<CodeContext>),
        AgentErrors,
        GuestErrors,
    )
)]
pub(super) async fn list(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<Vec<CodeContext>>> {
    let sandbox = app.sandbox(&caller, &id)?;
    let listed = during(&sandbox, contexts::list(sandbox.awake_agent().await?)).await?;
    Ok(Json(listed.into_iter().map(convert).collect()))
}

/// Makes a context: a separate interpreter in addition to the language's default one.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/contexts",
    tag = "code",
    operation_id = "create_context",
    params(("id" = String, Path)),
    request_body = CreateCodeContext,
    responses(
        (status = 201, description = "The context; its interpreter has started", body = CodeContext),
        AgentErrors,
        GuestErrors,
        (status = 400, description = "Invalid request, or the guest does not have the language", body = ErrorBody),
        (status = 429, description = "The sandbox has too many contexts", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(wanted): Json<CreateCodeContext>,
) -> Answer<(StatusCode, Json<CodeContext>)> {
    if wanted.cwd.as_ref().is_some_and(|cwd| cwd.is_empty() || cwd.len() > MAX_PATH || cwd.contains('\0')) {
        return Err(malformed(format!("cwd must have 1 to {MAX_PATH} bytes and no NUL byte")));
    }
    let sandbox = app.sandbox(&caller, &id)?;
    let request = CreateContextRequest { language: Some(wanted.language.name().into()), cwd: wanted.cwd };
    let made = during(&sandbox, contexts::create(sandbox.awake_agent().await?, &request)).await?;
    Ok((StatusCode::CREATED, Json(convert(made))))
}

/// Removes a context with its variables, and ends its running code.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{id}/contexts/{context}",
    tag = "code",
    operation_id = "remove_context",
    params(("id" = String, Path), ("context" = String, Path)),
    responses(
        (status = 204, description = "Removed"),
        AgentErrors,
        GuestErrors,
        (status = 404, description = "Sandbox or context not found", body = ErrorBody),
    )
)]
pub(super) async fn remove(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((id, context)): Path<(String, String)>,
) -> Answer<StatusCode> {
    let sandbox = app.sandbox(&caller, &id)?;
    during(&sandbox, contexts::remove(sandbox.awake_agent().await?, &context)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Restarts the interpreter of a context. Ends its running code and loses its variables.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/contexts/{context}/restart",
    tag = "code",
    operation_id = "restart_context",
    params(("id" = String, Path), ("context" = String, Path)),
    responses(
        (status = 204, description = "The new interpreter has started"),
        AgentErrors,
        GuestErrors,
        (status = 404, description = "Sandbox or context not found", body = ErrorBody),
    )
)]
pub(super) async fn restart(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((id, context)): Path<(String, String)>,
) -> Answer<StatusCode> {
    let sandbox = app.sandbox(&caller, &id)?;
    during(&sandbox, contexts::restart(sandbox.awake_agent().await?, &context)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Interrupts the code that runs in a context, as Ctrl-C does. If the code does not end in time, its interpreter is restarted.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/contexts/{context}/interrupt",
    tag = "code",
    operation_id = "interrupt_context",
    params(("id" = String, Path), ("context" = String, Path)),
    request_body = Interrupt,
    responses(
        (status = 200, description = "The code no longer runs", body = Interrupted),
        AgentErrors,
        GuestErrors,
        (status = 400, description = "Invalid request, or the sandbox's agent is too old", body = ErrorBody),
        (status = 404, description = "Sandbox or context not found", body = ErrorBody),
    )
)]
pub(super) async fn interrupt(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((id, context)): Path<(String, String)>,
    Json(wanted): Json<Interrupt>,
) -> Answer<Json<Interrupted>> {
    let grace = Duration::from_secs(within("grace_secs", wanted.grace_secs, 0..=LONGEST_GRACE_SECS)?);
    let sandbox = app.sandbox(&caller, &id)?;
    let asked = contexts::interrupt(sandbox.awake_agent().await?, &context, grace);
    let restarted = during(&sandbox, asked).await?;
    Ok(Json(Interrupted { restarted }))
}

fn convert(info: ContextInfo) -> CodeContext {
    let ContextInfo { id, language, cwd, busy } = info;
    CodeContext { id, language, cwd, busy }
}
