//! What every request passes, in this order: it gets its name and its place in a trace, its caller is recognised, the handler runs,
//! its answer gets the shape, and what happened is counted, logged and left in the audit log.
//!
//! Handlers find [`RequestId`] and [`Caller`] among the request's extensions, and middlewares find the daemon's state there.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_api::token::Scope;
use futures_util::FutureExt;
use tracing::Instrument;

use crate::app::Shared;
use crate::audit::{self, Line};
use crate::auth::{self, Caller, Peer};
use crate::error::{ApiError, Failure, shape};
use crate::protocol::{Aim, Plane};
use crate::request_id::{self, RequestId};
use crate::routes::mcp;
use crate::trace::ServerSpan;

/// What anybody may ask: load balancers have no token, and neither the document nor a certificate is a secret.
const PUBLIC: [&str; 3] = ["/healthz", "/openapi.json", "/v1/ca"];

/// The route of requests that are forwarded to sandboxes, for metrics.
const DATA_PLANE: &str = "{sandbox}";

/// The outermost layer of the router.
pub(crate) async fn gate(State(app): State<Shared>, mut request: Request, next: Next) -> Response {
    forkd_proto::passes!();
    let id = RequestId::of(request.headers());
    let route = request.extensions().get::<MatchedPath>().cloned();
    let route = route.as_ref().map(MatchedPath::as_str);
    let method = request.method().clone();
    let mut record = Record::begin(&app, &request, &id);
    let Line { method: verb, path, .. } = &record.line;
    let span = tracing::info_span!("request", id = id.as_str(), method = %verb, %path);

    let plane = app.protocol.plane(&app, &request);
    let route = if matches!(plane, Plane::Data(_)) { Some(DATA_PLANE) } else { route };
    let asked = (&method, route);
    let mut server_span = ServerSpan::begin(app.spans.as_ref(), request.headers(), asked, &id, record.begun);
    let trace = server_span.trace().clone();
    trace.replace_in(request.headers_mut());
    let mut response = match plane {
        // Sandboxes have tokens of their own.
        Plane::Data(aim) => {
            record.forward_to(&aim);
            trace.scope(data_plane(&app, aim, request)).instrument(span.clone()).await
        }
        plane => {
            let link = app.protocol.link_caller(request.uri()).filter(|_| plane == Plane::Control);
            let caller = link.map_or_else(|| recognise(&app, route, &request), Ok);
            if let Ok(caller) = &caller {
                record.line.who.clone_from(&caller.name);
                record.line.project = Some(caller.project.to_string());
            }
            let least = if route == Some(mcp::PATH) { Scope::Read } else { auth::least(&method) };
            let allowed = caller.and_then(|caller| caller.require(least).map(|()| caller));
            let response = match allowed {
                Err(error) => error.into_response(),
                Ok(caller) => {
                    request.extensions_mut().insert(id.clone());
                    request.extensions_mut().insert(caller);
                    request.extensions_mut().insert(app.clone());
                    guarded(trace.scope(next.run(request))).instrument(span.clone()).await
                }
            };
            match plane {
                Plane::Control => app.protocol.dress(shape(response)),
                _ => shape(response),
            }
        }
    };

    let latency = record.begun.elapsed();
    app.metrics.answered(route, &method, response.status(), latency);
    if let Some(Failure { code, text, detail, .. }) = response.extensions().get::<Failure>() {
        app.metrics.failed(*code);
        let detail = detail.as_deref().unwrap_or("");
        let _entered = span.enter();
        match code.status() {
            500.. => tracing::error!(%text, %detail, "the request failed"),
            _ => tracing::debug!(%text, %detail, "the request was refused"),
        }
    }
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, id.header());
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let line = record.finish(&response);
    server_span.answered(response.status(), line.project.as_deref());
    drop(server_span);
    app.audit.record(line).await;
    response
}

/// A request that is forwarded to a sandbox.
async fn data_plane(app: &Shared, aim: Aim, request: Request) -> Response {
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return nowhere().into_response();
    };
    guarded(Arc::clone(&app.protocol).serve(app.clone(), peer, aim, request)).await
}

fn nowhere() -> ApiError {
    ApiError::new(ErrorCode::Internal, "the daemon failed").detail("a request without a peer address")
}

fn recognise(app: &Shared, route: Option<&str>, request: &Request) -> Result<Caller, ApiError> {
    let Some(peer) = request.extensions().get::<Peer>() else {
        return Err(nowhere());
    };
    let caller = auth::authenticate(&app.tokens, peer, request.headers());
    if route.is_some_and(|route| PUBLIC.contains(&route)) && request.method().is_safe() {
        return Ok(caller.unwrap_or_else(|_| Caller::nobody()));
    }
    caller
}

/// A handler that panics is an answer, too, and does not take the connection with it.
async fn guarded(handler: impl Future<Output = Response>) -> Response {
    let result = AssertUnwindSafe(handler).catch_unwind();
    result.await.unwrap_or_else(|panic| {
        ApiError::new(ErrorCode::Internal, "the daemon failed")
            .hint(HintCode::DaemonLog)
            .detail(format!("a handler panicked: {}", words(&*panic)))
            .into_response()
    })
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("")
}

/// A line of the audit log in the making. It is left there also when the caller goes away in between.
struct Record {
    app: Shared,
    begun: Instant,
    line: Line,
    finished: bool,
}

impl Record {
    fn begin(app: &Shared, request: &Request, id: &RequestId) -> Record {
        let path = request.uri().path();
        let from = match request.extensions().get::<Peer>() {
            Some(Peer::Tcp { address, .. }) => address.to_string(),
            Some(Peer::Unix { .. }) => "unix".to_owned(),
            None => "-".to_owned(),
        };
        let method: String = request.method().as_str().chars().take(16).collect();
        let line = Line {
            time: audit::timestamp(),
            who: "-".into(),
            project: None,
            from,
            method,
            path: audit::short(path),
            sandboxes: audit::sandbox_in(path).into_iter().collect(),
            status: None,
            latency_us: 0,
            request_id: id.as_str().to_owned(),
        };
        Record { app: app.clone(), begun: Instant::now(), line, finished: false }
    }

    /// Names the port that the request is forwarded to. Its token is checked later.
    fn forward_to(&mut self, aim: &Aim) {
        if let Aim::Port { id, port, .. } = aim {
            self.line.who = format!("port:{port}");
            self.line.sandboxes = vec![id.clone()];
            let sandbox = self.app.engine.sandbox(id).ok();
            self.line.project = sandbox.map(|sandbox| sandbox.view().record.project.into());
        }
    }

    fn finish(mut self, response: &Response) -> Line {
        self.line.status = Some(response.status().as_u16());
        if let Some(audit::Sandboxes(ids)) = response.extensions().get() {
            self.line.sandboxes.clone_from(ids);
        }
        self.take()
    }

    fn take(&mut self) -> Line {
        self.finished = true;
        self.line.latency_us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.line.clone()
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if !self.finished {
            let line = self.take();
            self.app.audit.record_now(line);
        }
    }
}
