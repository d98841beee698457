//! Requests that may be repeated: `Idempotency-Key` on what creates something.
//!
//! ```text
//!           ┌────────── same key, other request: 409
//! (nothing) │    ┌───── same key and request: waits, then looks again
//!     │     │    │
//!     └──▶ running ──▶ answered ──▶ same key and request: the same answer again
//!             │           └───────▶ forgotten, by age or for lack of room
//!             └──▶ (nothing)        failed in a way that may pass: the next one tries again
//! ```
//!
//! Keys are per caller. A request with a key continues when its caller disconnects; a later request with the key gets its answer.
//! Answers are kept in memory, so a restart of the daemon forgets them; names that are taken still are.
//! Streams are not kept: their keys only keep two from beginning at once.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use http_body::Body as _;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Instrument;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::{ApiError, Failure};
use crate::trace::RequestTrace;
use crate::{extract, request_id};

/// The header that has the key.
pub const HEADER: HeaderName = HeaderName::from_static("idempotency-key");
/// On an answer that was given before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

const MAX_KEY: usize = 255;

/// How much is remembered.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Answers, and beside them as many requests that run.
    pub count: usize,
    /// Bytes of all answers together.
    pub bytes: usize,
    /// Bytes of one answer.
    pub answer_bytes: usize,
    pub age: Duration,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { count: 4096, bytes: 32 << 20, answer_bytes: 2 << 20, age: Duration::from_secs(24 * 3600) }
    }
}

type Key = (String, String);
type Fingerprint = [u8; 32];

/// The answers that are remembered.
#[derive(Debug)]
pub struct Idempotency {
    bounds: Bounds,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    entries: HashMap<Key, RequestEntry>,
    /// The keys of the answers, the oldest first.
    order: VecDeque<Key>,
    bytes: usize,
}

#[derive(Debug)]
struct RequestEntry {
    fingerprint: Fingerprint,
    state: Progress,
}

#[derive(Debug)]
enum Progress {
    /// The channel closes when it is not running any more.
    Running(watch::Receiver<()>),
    Answered {
        answer: Kept,
        at: Instant,
    },
}

/// An answer that can be given again.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    failure: Option<Box<Failure>>,
}

/// What a key means for a request.
enum Turn {
    First(Running),
    Wait(watch::Receiver<()>),
    Again(Kept),
}

/// The place of a request that runs. Dropped without an answer, it leaves nothing, and those who wait try themselves.
#[derive(Debug)]
struct Running {
    app: Shared,
    key: Key,
    /// Those who wait see it go.
    _alive: watch::Sender<()>,
    answered: bool,
}

/// The middleware for routes that create something:
/// `OpenApiRouter::new().routes(routes!(create)).route_layer(from_fn(idempotency::once))`, merged with the others. It has the
/// daemon's state from the gate, so that routes can be listed without a daemon.
pub async fn once(Extension(app): Extension<Shared>, request: Request, next: Next) -> Response {
    let Some(key) = request.headers().get(HEADER) else { return next.run(request).await };
    match keyed(&app, key.clone(), request, next).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

async fn keyed(app: &Shared, key: HeaderValue, request: Request, next: Next) -> Result<Response, ApiError> {
    let key = key.to_str().ok().filter(|key| is_key(key)).ok_or_else(|| {
        let text = format!("invalid idempotency key: expected 1 to {MAX_KEY} visible ASCII characters");
        ApiError::new(ErrorCode::Malformed, text)
    })?;
    // A token that was made anew for another project is another caller.
    let caller = request.extensions().get::<Caller>();
    let caller = caller.map(|caller| format!("{} {}", caller.project, caller.name)).unwrap_or_default();
    let key = (caller, key.to_owned());
    let (parts, body) = request.into_parts();
    let body = extract::read(body, app.limits.json_bytes, app.limits.body_time).await?;
    let mut digest = Sha256::new();
    // Neither a method nor a path has a line feed in it.
    digest.update(format!("{}\n{}\n", parts.method, parts.uri));
    digest.update(&body);
    let fingerprint: Fingerprint = digest.finalize().into();
    let running = loop {
        match turn(app, &key, fingerprint)? {
            Turn::First(running) => break running,
            // It only ever closes.
            Turn::Wait(mut running) => while running.changed().await.is_ok() {},
            Turn::Again(kept) => return Ok(kept.into_response()),
        }
    };
    let request = Request::from_parts(parts, Body::from(body));
    let bounds = app.idempotency.bounds;
    let work = async move {
        let response = next.run(request).await;
        let (response, kept) = keep(response, bounds.answer_bytes).await;
        if let Some(kept) = kept {
            running.answer(kept);
        }
        response
    };
    let work = tokio::spawn(RequestTrace::current().scope(work).in_current_span());
    work.await.map_err(|error| ApiError::internal(&error))
}

fn is_key(key: &str) -> bool {
    (1..=MAX_KEY).contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic())
}

fn turn(app: &Shared, key: &Key, fingerprint: Fingerprint) -> Result<Turn, ApiError> {
    let bounds = app.idempotency.bounds;
    let mut memory = app.idempotency.lock();
    memory.forget(bounds);
    if let Some(entry) = memory.entries.get(key) {
        if entry.fingerprint != fingerprint {
            return Err(ApiError::new(
                ErrorCode::IdempotencyMismatch,
                "the idempotency key was used for another request",
            )
            .hint(HintCode::NewKey));
        }
        return Ok(match &entry.state {
            Progress::Running(running) => Turn::Wait(running.clone()),
            Progress::Answered { answer, .. } => Turn::Again(answer.clone()),
        });
    }
    if memory.entries.len() - memory.order.len() >= bounds.count {
        return Err(ApiError::new(ErrorCode::TooMany, "too many requests with idempotency keys are running"));
    }
    let (alive, running) = watch::channel(());
    memory.entries.insert(key.clone(), RequestEntry { fingerprint, state: Progress::Running(running) });
    Ok(Turn::First(Running { app: Arc::clone(app), key: key.clone(), _alive: alive, answered: false }))
}

/// Takes an answer apart if it is one to be kept: not a stream, not too large, and nothing that may be different soon.
pub(crate) async fn keep(response: Response, limit: usize) -> (Response, Option<Kept>) {
    let status = response.status();
    let passing = status.is_server_error()
        || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(&status);
    let small = response
        .body()
        .size_hint()
        .exact()
        .is_some_and(|size| usize::try_from(size).is_ok_and(|s| s <= limit));
    if passing || !small {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    let Ok(body) = axum::body::to_bytes(body, limit).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR.into_response(), None);
    };
    let mut headers = parts.headers.clone();
    headers.remove(request_id::HEADER);
    let failure = parts.extensions.get::<Failure>().cloned().map(Box::new);
    let kept = Kept { status: parts.status, headers, body: body.clone(), failure };
    (Response::from_parts(parts, Body::from(body)), Some(kept))
}

impl IntoResponse for Kept {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
        if let Some(failure) = self.failure {
            response.extensions_mut().insert(*failure);
        }
        response
    }
}

impl Idempotency {
    pub fn new(bounds: Bounds) -> Idempotency {
        Idempotency { bounds, memory: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    fn answer(mut self, answer: Kept) {
        self.answered = true;
        let bounds = self.app.idempotency.bounds;
        let mut memory = self.app.idempotency.lock();
        let size = size(&self.key, &answer);
        if let Some(entry) = memory.entries.get_mut(&self.key) {
            entry.state = Progress::Answered { answer, at: Instant::now() };
            memory.order.push_back(self.key.clone());
            memory.bytes += size;
        }
        memory.forget(bounds);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.answered {
            self.app.idempotency.lock().entries.remove(&self.key);
        }
    }
}

impl Memory {
    /// Forgets the oldest answers until the rest fits.
    fn forget(&mut self, bounds: Bounds) {
        while let Some(key) = self.order.front() {
            let old = match self.entries.get(key) {
                Some(RequestEntry { state: Progress::Answered { at, .. }, .. }) => at.elapsed() > bounds.age,
                _ => true,
            };
            if !old && self.order.len() <= bounds.count && self.bytes <= bounds.bytes {
                return;
            }
            let Some(key) = self.order.pop_front() else { return };
            if let Some(RequestEntry { state: Progress::Answered { answer, .. }, .. }) =
                self.entries.remove(&key)
            {
                self.bytes -= size(&key, &answer);
            }
        }
    }
}

/// About what an answer takes in memory.
fn size(key: &Key, answer: &Kept) -> usize {
    let headers: usize = answer.headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
    2 * (key.0.len() + key.1.len()) + headers + answer.body.len() + size_of::<RequestEntry>()
}
