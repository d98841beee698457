//! Code in a sandbox.

use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use forkd_api::code::{Eval, EvalEvent, Evaluated};
use forkd_api::error::ErrorBody;
use forkd_engine::SandboxHandle;
use forkd_engine::eval::{self, Code, Collected, Running};

use super::run::{LONGEST_SECS, in_time};
use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::during::during;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::ndjson::{self, Gone, Lines};
use crate::routes::checks::{self, within};
use crate::trace::RequestTrace;

/// Runs code in one of a sandbox's interpreters, which keep their state between calls.
///
/// With `Accept: application/x-ndjson`, the response is a stream of EvalEvent. Code is interrupted when it times out or its client
/// disconnects; the response has the output until then.
#[utoipa::path(
    post,
    path = "/v1/sandboxes/{id}/eval",
    tag = "code",
    operation_id = "eval",
    params(("id" = String, Path)),
    request_body = Eval,
    responses(
        (status = 200, description = "The result, also of code that raised an exception or timed out; lines of JSON if requested", content(
            (Evaluated = "application/json"),
            (EvalEvent = "application/x-ndjson"),
        )),
        (status = 400, description = "Invalid request, or the guest does not have the language", body = ErrorBody),
        (status = 404, description = "Sandbox or context not found", body = ErrorBody),
        (status = 409, description = "The sandbox is not running, or has no agent", body = ErrorBody),
        (status = 429, description = "Too many executions wait for the context, or too many contexts", body = ErrorBody),
        (status = 502, description = "Invalid response from the guest", body = ErrorBody),
        (status = 504, description = "The guest did not answer in time", body = ErrorBody),
    )
)]
pub(super) async fn eval(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(mut wanted): Json<Eval>,
) -> Answer<Response> {
    let limit = Duration::from_secs(within("timeout_secs", wanted.timeout_secs, 1..=LONGEST_SECS)?);
    checks::env(&wanted.env)?;
    RequestTrace::current().pass_on(&mut wanted.env);
    let sandbox = app.sandbox(&caller, &id)?;
    let language = wanted.context.is_none().then_some(wanted.language.name());
    let code = Code { code: &wanted.code, language, context: wanted.context.as_deref(), env: wanted.env };
    let begun = Instant::now();
    let starting = eval::start(sandbox.awake_agent().await?, &code);
    let running = in_time(limit, during(&sandbox, starting)).await??;
    let watch = Watch { running, begun, limit, sandbox: sandbox.clone() };
    if ndjson::is_wanted(&headers) {
        return Ok(ndjson::answer(move |lines| async move {
            // Who has gone does not need the rest.
            let _ = stream(&app, watch, &lines).await;
        }));
    }
    Ok(Json(collect(&app, watch).await?).into_response())
}

/// Code that runs, and its time.
struct Watch {
    running: Running,
    begun: Instant,
    limit: Duration,
    sandbox: SandboxHandle,
}

impl Watch {
    /// `Ended` when its time is over; it is interrupted when this is dropped.
    async fn next(&mut self) -> Answer<EvalEvent> {
        let left = self.limit.saturating_sub(self.begun.elapsed());
        let next = during(&self.sandbox, self.running.next());
        let next = tokio::time::timeout(left, next).await;
        let over = EvalEvent::Ended { timed_out: true, truncated: self.running.is_truncated() };
        next.unwrap_or(Ok(over))
    }
}

async fn collect(app: &App, mut watch: Watch) -> Answer<Evaluated> {
    let mut collected = Collected::default();
    loop {
        let event = watch.next().await?;
        let last = event.is_last();
        collected.add(event);
        if last {
            app.metrics.engine.executed(watch.begun.elapsed());
            return Ok(collected.finish());
        }
    }
}

async fn stream(app: &App, mut watch: Watch, lines: &Lines) -> Result<(), Gone> {
    loop {
        let event = watch.next().await.unwrap_or_else(|error| {
            app.metrics.failed(error.code());
            EvalEvent::Error(error.logged())
        });
        if matches!(event, EvalEvent::Ended { .. }) {
            app.metrics.engine.executed(watch.begun.elapsed());
        }
        lines.write(&event).await?;
        if event.is_last() {
            return Ok(());
        }
    }
}
