//! Running programs of a sandbox, started by any client.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use forkd_api::error::ErrorBody;
use forkd_api::exec::{
    Exec, ExecEvent, MAX_STDIN, Process, SendSignal, StartProcess, StartedProcess, StdinQuery,
};
use forkd_engine::agent::{Agent, AgentError};
use forkd_engine::exec::{self, ExecError, Input, Program, Remote};
use forkd_envd::process::ProcessInfo;

use super::interact::{self, Session};
use super::run::{GRACE, LONGEST_SECS, Watch, check, in_time, stream};
use crate::app::Shared;
use crate::auth::Caller;
use crate::during::during;
use crate::error::Answer;
use crate::extract::{self, Json, Path, Query};
use crate::ndjson;
use crate::routes::checks::{malformed, within};
use crate::routes::responses::{AgentErrors, GuestErrors};
use crate::trace::RequestTrace;

/// What a program gets to take what it is sent.
const TAKING: Duration = Duration::from_secs(60);

/// Lists the running programs that clients have started in a sandbox, by pid.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/processes",
    tag = "processes",
    operation_id = "list_processes",
    params(("id" = String, Path)),
    responses((status = 200, description = "The running programs", body = Vec<Process>), AgentErrors, GuestErrors)
)]
pub(super) async fn list(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<Vec<Process>>> {
    let sandbox = app.sandbox(&caller, &id)?;
    let listed = during(&sandbox, exec::list(sandbox.awake_agent().await?)).await?;
    Ok(Json(listed.into_iter().map(convert).collect()))
}

/// Starts a program in the background. Clients that connect to it get its output from that moment on.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/processes",
    tag = "processes",
    operation_id = "start_process",
    params(("id" = String, Path)),
    request_body = StartProcess,
    responses(
        (status = 201, description = "The running program", body = StartedProcess),
        AgentErrors,
        GuestErrors,
        (status = 400, description = "Invalid request, or refused by the guest", body = ErrorBody),
    )
)]
pub(super) async fn start(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Json(wanted): Json<StartProcess>,
) -> Answer<(StatusCode, Json<StartedProcess>)> {
    let StartProcess { args, env, cwd, user, stdin, timeout_secs } = wanted;
    let limit = timeout_secs.map(|seconds| within("timeout_secs", seconds, 1..=LONGEST_SECS)).transpose()?;
    let mut wanted = Exec { args, env, cwd, user, stdin: None, timeout_secs: LONGEST_SECS };
    check(&wanted)?;
    RequestTrace::current().pass_on(&mut wanted.env);
    let sandbox = app.sandbox(&caller, &id)?;
    let program = Program {
        arguments: &wanted.args,
        env: &wanted.env,
        workdir: wanted.cwd.as_deref().unwrap_or(""),
        user: wanted.user.as_deref(),
        stdin: None,
        limit: limit.map(Duration::from_secs),
    };
    let starting = exec::detach(sandbox.awake_agent().await?, &program, stdin);
    let pid = in_time(GRACE, during(&sandbox, starting)).await??;
    Ok((StatusCode::CREATED, Json(StartedProcess { pid })))
}

/// Connects to a running program and follows its output from now on. Several clients can follow the same program.
///
/// Over a WebSocket the messages are those of GET `exec`, without an ExecStart; the client can write, signal and resize. Without a
/// WebSocket, the response is a stream of ExecEvent. The program keeps running when its client disconnects. The end of a program is
/// still reported for a minute.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/processes/{pid}",
    tag = "processes",
    operation_id = "connect_process",
    params(("id" = String, Path), ("pid" = u32, Path)),
    responses(
        (status = 101, description = "A WebSocket; its text messages have this schema", body = ExecEvent),
        (status = 200, description = "Lines of JSON", body = ExecEvent, content_type = "application/x-ndjson"),
        AgentErrors,
        GuestErrors,
        (status = 404, description = "Sandbox or program not found", body = ErrorBody),
        (status = 503, description = "The daemon has too many open connections", body = ErrorBody),
    )
)]
pub(super) async fn connect(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((id, pid)): Path<(String, u32)>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer<Response> {
    let sandbox = app.sandbox(&caller, &id)?;
    let agent = sandbox.awake_agent().await?;
    let Ok(upgrade) = upgrade else {
        if headers.contains_key(axum::http::header::UPGRADE) {
            return Err(malformed("incomplete WebSocket request"));
        }
        let running = in_time(GRACE, during(&sandbox, exec::connect(agent, pid))).await??;
        let watch = Watch { running, begun: Instant::now(), limit: None, sandbox };
        return Ok(ndjson::answer(move |lines| async move {
            // Who has gone does not need the rest.
            let _ = stream(&app, watch, &lines).await;
        }));
    };
    let connecting = async {
        let terminal = is_at_terminal(agent, pid).await?;
        Ok::<_, ExecError>((terminal, exec::connect(agent, pid).await?))
    };
    let (terminal, running) = in_time(GRACE, during(&sandbox, connecting)).await??;
    let session = Session {
        input: Input::of(agent, pid, terminal),
        remote: Remote::of(agent, pid),
        watch: Watch { running, begun: Instant::now(), limit: None, sandbox: sandbox.clone() },
        terminal,
        first: None,
        window: true,
        guest: true,
    };
    interact::serve_session(&app, upgrade, session)
}

/// Sends a signal to a running program and its process group.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/processes/{pid}/signal",
    tag = "processes",
    operation_id = "signal_process",
    params(("id" = String, Path), ("pid" = u32, Path)),
    request_body = SendSignal,
    responses(
        (status = 204, description = "The signal was sent"),
        AgentErrors,
        GuestErrors,
        (status = 404, description = "Sandbox or program not found", body = ErrorBody),
    )
)]
pub(super) async fn signal(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((id, pid)): Path<(String, u32)>,
    Json(wanted): Json<SendSignal>,
) -> Answer<StatusCode> {
    let sandbox = app.sandbox(&caller, &id)?;
    let remote = Remote::of(sandbox.awake_agent().await?, pid);
    let sending = async { remote.signal(interact::to_signal(wanted.signal)).await.map_err(of_process) };
    during(&sandbox, sending).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Writes the body to the stdin of a running program, at most 1 MiB. Signals are not queued behind it.
///
/// Responds when the program has read all of it. After a minute the request fails, and the program may have read a part.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/processes/{pid}/stdin",
    tag = "processes",
    operation_id = "write_process_stdin",
    params(("id" = String, Path), ("pid" = u32, Path), StdinQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses(
        (status = 204, description = "The program has read all bytes"),
        AgentErrors,
        GuestErrors,
        (status = 400, description = "The program has no writable stdin", body = ErrorBody),
        (status = 404, description = "Sandbox or program not found", body = ErrorBody),
        (status = 413, description = "The body is too large", body = ErrorBody),
    )
)]
pub(super) async fn write(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((id, pid)): Path<(String, u32)>,
    Query(wanted): Query<StdinQuery>,
    request: axum::extract::Request,
) -> Answer<StatusCode> {
    let bytes = extract::read(request.into_body(), MAX_STDIN, app.limits.body_time).await?;
    let sandbox = app.sandbox(&caller, &id)?;
    let agent = sandbox.awake_agent().await?;
    let writing = async {
        let mut input = Input::of(agent, pid, is_at_terminal(agent, pid).await?);
        input.write(&bytes).await.map_err(of_process)?;
        if wanted.close {
            input.close().await.map_err(of_process)?;
        }
        Ok::<_, ExecError>(())
    };
    in_time(TAKING, during(&sandbox, writing)).await??;
    Ok(StatusCode::NO_CONTENT)
}

/// Whether a program that runs has a terminal. For one that does not run, the caller reports the error.
async fn is_at_terminal(agent: &Agent, pid: u32) -> Result<bool, ExecError> {
    Ok(exec::list(agent).await?.iter().any(|process| process.pid == pid && process.terminal))
}

/// What the agent says of a program.
fn of_process(error: AgentError) -> ExecError {
    match error {
        AgentError::Status { status: StatusCode::NOT_FOUND, message, .. } => {
            ExecError::NoProcess(words(&message))
        }
        AgentError::Status { status: StatusCode::BAD_REQUEST, message, .. } => {
            ExecError::Refused(words(&message))
        }
        error => error.into(),
    }
}

fn words(message: &str) -> String {
    forkd_envd::connect::refusal(message.as_bytes())
}

fn convert(info: ProcessInfo) -> Process {
    let ProcessInfo { config, pid, tag, terminal } = info;
    let args = [vec![config.cmd], config.args].concat();
    Process { pid, args, cwd: config.cwd.filter(|cwd| !cwd.is_empty()), tag, tty: terminal }
}
