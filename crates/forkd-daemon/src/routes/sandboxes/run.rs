//! Commands in a sandbox.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use forkd_api::data::Data;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::exec::{Exec, ExecEvent, Executed};
use forkd_engine::SandboxHandle;
use forkd_engine::exec::{self, Program, Running};

use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::during::during;
use crate::error::{Answer, ApiError};
use crate::extract::{Json, Path};
use crate::ndjson::{self, Gone, Lines};
use crate::routes::checks::{self, malformed, within};
use crate::routes::responses::{AgentErrors, GuestErrors};
use crate::trace::RequestTrace;

pub(super) const LONGEST_SECS: u64 = 24 * 3600;
/// What a guest gets beyond the command's own time, to say that it is over.
pub(super) const GRACE: Duration = Duration::from_secs(30);
/// What is kept of each of a command's streams. The streaming answer has all of it.
const KEPT: usize = 8 << 20;
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 256;

/// Runs a program in a sandbox.
///
/// With `Accept: application/x-ndjson`, the response is a stream of ExecEvent. The program keeps running when its client
/// disconnects, until its timeout.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/exec",
    tag = "sandboxes",
    operation_id = "exec",
    params(("id" = String, Path)),
    request_body = Exec,
    responses(
        (status = 200, description = "The result of the program; lines of JSON if requested", content(
            (Executed = "application/json"),
            (ExecEvent = "application/x-ndjson"),
        )),
        AgentErrors,
        GuestErrors,
        (status = 400, description = "Invalid request, or refused by the guest", body = ErrorBody),
    )
)]
pub(super) async fn exec(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(mut wanted): Json<Exec>,
) -> Answer<Response> {
    forkd_proto::passes!();
    let limit = check(&wanted)?;
    RequestTrace::current().pass_on(&mut wanted.env);
    let sandbox = app.sandbox(&caller, &id)?;
    let agent = sandbox.awake_agent().await?;
    let program = Program {
        arguments: &wanted.args,
        env: &wanted.env,
        workdir: wanted.cwd.as_deref().unwrap_or(""),
        user: wanted.user.as_deref(),
        stdin: wanted.stdin.map(Into::into),
        limit: Some(limit),
    };
    let begun = Instant::now();
    let running = in_time(GRACE, during(&sandbox, exec::start(agent, &program))).await??;
    let watch = Watch { running, begun, limit: Some(limit), sandbox: sandbox.clone() };
    if ndjson::is_wanted(&headers) {
        return Ok(ndjson::answer(move |lines| async move {
            // Who has gone does not need the rest.
            let _ = stream(&app, watch, &lines).await;
        }));
    }
    Ok(Json(collect(&app, watch).await?).into_response())
}

pub(super) fn check(wanted: &Exec) -> Answer<Duration> {
    checks::command("args", &wanted.args)?;
    checks::env(&wanted.env)?;
    let is = |text: &Option<String>, most, wrong: &[char]| {
        text.as_ref().is_none_or(|text| text.len() <= most && !text.contains(wrong))
    };
    if !is(&wanted.cwd, MAX_PATH, &['\0']) || !is(&wanted.user, MAX_NAME, &['\0', ':']) {
        return Err(malformed("cwd or user is too long or has an invalid character"));
    }
    Ok(Duration::from_secs(within("timeout_secs", wanted.timeout_secs, 1..=LONGEST_SECS)?))
}

pub(super) async fn in_time<T>(time: Duration, asked: impl Future<Output = T>) -> Answer<T> {
    tokio::time::timeout(time, asked)
        .await
        .map_err(|_| ApiError::new(ErrorCode::GuestTimeout, "the guest did not answer in time"))
}

/// A program that runs, and its time.
pub(super) struct Watch {
    pub running: Running,
    pub begun: Instant,
    /// What the agent gives it, if that is known here.
    pub limit: Option<Duration>,
    pub sandbox: SandboxHandle,
}

impl Watch {
    pub async fn next(&mut self) -> Answer<ExecEvent> {
        let next = during(&self.sandbox, self.running.next());
        match self.limit {
            Some(limit) => in_time((limit + GRACE).saturating_sub(self.begun.elapsed()), next).await?,
            None => next.await,
        }
    }

    pub fn measure(&self, app: &App) {
        app.metrics.engine.executed(self.begun.elapsed());
    }
}

async fn collect(app: &App, mut watch: Watch) -> Answer<Executed> {
    let mut kept = Kept::default();
    loop {
        match watch.next().await? {
            ExecEvent::Exited { exit_code, timed_out } => {
                watch.measure(app);
                return Ok(kept.finish(exit_code, timed_out));
            }
            event => kept.add(&event),
        }
    }
}

pub(super) async fn stream(app: &App, mut watch: Watch, lines: &Lines) -> Result<(), Gone> {
    loop {
        let event = watch.next().await.unwrap_or_else(|error| failed(app, error));
        if matches!(event, ExecEvent::Exited { .. }) {
            watch.measure(app);
        }
        lines.write(&event).await?;
        if event.is_last() {
            return Ok(());
        }
    }
}

/// The last event of a program that could not be followed to its end.
pub(super) fn failed(app: &App, error: ApiError) -> ExecEvent {
    app.metrics.failed(error.code());
    ExecEvent::Error(error.logged())
}

/// A command's output, as far as it is kept.
#[derive(Default)]
struct Kept {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
}

impl Kept {
    fn add(&mut self, event: &ExecEvent) {
        let (kept, bytes) = match event {
            ExecEvent::Stdout(Data(bytes)) => (&mut self.stdout, bytes),
            ExecEvent::Stderr(Data(bytes)) => (&mut self.stderr, bytes),
            _ => return,
        };
        let room = KEPT.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(bytes.get(..room).unwrap_or_default());
        self.truncated |= room < bytes.len();
    }

    fn finish(self, exit_code: i32, timed_out: bool) -> Executed {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let Kept { stdout, stderr, truncated } = self;
        Executed { stdout: text(stdout), stderr: text(stderr), exit_code, timed_out, truncated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_that_make_no_sense_are_refused() {
        let check_json = |text: &str| check(&serde_json::from_str(text).unwrap());
        let seconds = |text| check_json(text).unwrap().as_secs();
        assert_eq!(seconds(r#"{"args": ["a"]}"#), 30);
        assert_eq!(seconds(r#"{"args": ["a"], "user": "me", "cwd": "/", "timeout_secs": 86400}"#), 86400);
        for wrong in [
            r#"{"args": []}"#,
            r#"{"args": [""]}"#,
            r#"{"args": ["a\u0000"]}"#,
            r#"{"args": ["a"], "timeout_secs": 0}"#,
            r#"{"args": ["a"], "timeout_secs": 86401}"#,
            r#"{"args": ["a"], "user": "a:b"}"#,
            r#"{"args": ["a"], "cwd": "\u0000"}"#,
            r#"{"args": ["a"], "env": {"": ""}}"#,
        ] {
            assert_eq!(check_json(wrong).unwrap_err().code(), ErrorCode::Malformed, "{wrong}");
        }
    }

    #[test]
    fn output_is_kept_up_to_a_bound_and_said_to_be_cut() {
        let mut kept = Kept::default();
        kept.add(&ExecEvent::Stderr(Data::from(&b"\xff!"[..])));
        kept.add(&ExecEvent::Stdout(vec![b'x'; KEPT].into()));
        assert!(!kept.truncated);
        for _ in 0..100 {
            kept.add(&ExecEvent::Stdout(vec![b'y'; 1 << 20].into()));
        }
        let executed = kept.finish(7, false);
        assert_eq!((executed.stdout.len(), executed.stderr.as_str()), (KEPT, "\u{fffd}!"));
        assert!(executed.truncated && !executed.stdout.contains('y'));
    }
}
