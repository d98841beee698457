//! The calls of E2B's code interpreter, and forkd's own beside them: `/forkd/warm`, and interrupting a context.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path as UrlPath, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use forkd_envd::HEALTH;
use forkd_envd::caller::ACCESS_TOKEN;
use forkd_envd::interpreter::{
    CONTEXTS, ContextInfo, CreateContextRequest, EXECUTE, ExecuteRequest, InterruptRequest, InterruptResponse,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::body;
use super::contexts::{Context, ContextError, Interrupted};
use super::job::Job;
use super::language::{Language, UnknownLanguage};
use super::launch::LaunchError;
use crate::agent::Agent;
use crate::children::SpawnError;
use crate::envd::token_is_right;
use crate::server::Peer;

/// Code with its data in it may be large; beyond this it belongs into a file.
const MAX_BODY: usize = 16 << 20;
const MAX_NAME: usize = 100;
const MAX_GRACE_MS: u64 = 600_000;

#[derive(Debug, Deserialize)]
struct WarmRequest {
    /// A name of the caller's; the language's default context without one.
    context: Option<String>,
    language: Option<String>,
    code: String,
}

/// Answers are plain text, as E2B's are.
#[derive(Debug, thiserror::Error)]
enum CallError {
    #[error("invalid request body: {0}")]
    Body(String),
    #[error("Only one of context_id or language can be provided")]
    Both,
    #[error("invalid context name: expected 1 to {MAX_NAME} characters")]
    Name,
    #[error("the access token is missing or wrong")]
    Token,
    #[error(transparent)]
    Language(#[from] UnknownLanguage),
    #[error(transparent)]
    Context(#[from] ContextError),
}

pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route(HEALTH, get(async || "OK"))
        .route(EXECUTE, post(execute))
        .route(CONTEXTS, post(create).get(list))
        .route("/contexts/{id}/restart", post(restart))
        .route("/contexts/{id}/interrupt", post(interrupt))
        .route("/contexts/{id}", axum::routing::delete(remove))
        .route("/forkd/warm", post(warm))
}

async fn execute(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, CallError> {
    check_token(&agent, request.headers())?;
    let peer = peer(&request);
    let asked: ExecuteRequest = read(request).await?;
    let context = match (&asked.context_id, &asked.language) {
        (Some(_), Some(_)) => return Err(CallError::Both),
        (Some(id), None) => agent.contexts.get(&agent, id).await?,
        (None, language) => agent.contexts.default_of(&agent, parse(language.as_deref())?).await?,
    };
    submit(&context, asked.code, asked.env_vars.unwrap_or_default(), peer)
}

/// Like `/execute`, in a context that is made when it is not there.
async fn warm(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, CallError> {
    check_token(&agent, request.headers())?;
    let peer = peer(&request);
    let asked: WarmRequest = read(request).await?;
    let language = parse(asked.language.as_deref())?;
    let name = asked.context.as_deref().unwrap_or_else(|| language.default_context());
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(CallError::Name);
    }
    let context = agent.contexts.named(&agent, name, language).await?;
    submit(&context, asked.code, BTreeMap::new(), peer)
}

/// The client that a request came from.
fn peer(request: &Request) -> Peer {
    request.extensions().get().cloned().unwrap_or_default()
}

fn submit(
    context: &Context,
    code: String,
    environment: BTreeMap<String, String>,
    peer: Peer,
) -> Result<Response, CallError> {
    let (lines, body) = body::channel();
    context.submit(Job { code, environment, lines, peer })?;
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::new(body)).into_response())
}

async fn create(State(agent): State<Arc<Agent>>, request: Request) -> Result<Response, CallError> {
    check_token_if_shown(&agent, request.headers())?;
    let asked: CreateContextRequest = read(request).await?;
    let context = agent.contexts.create(&agent, parse(asked.language.as_deref())?, asked.cwd).await?;
    Ok(axum::Json(describe(&context)).into_response())
}

async fn list(State(agent): State<Arc<Agent>>, headers: HeaderMap) -> Result<Response, CallError> {
    check_token_if_shown(&agent, &headers)?;
    agent.contexts.enter_defaults(&agent).await?;
    let contexts = agent.contexts.list();
    let described: Vec<_> = contexts.iter().map(describe).collect();
    Ok(axum::Json(described).into_response())
}

async fn restart(
    State(agent): State<Arc<Agent>>,
    UrlPath(id): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, CallError> {
    check_token_if_shown(&agent, &headers)?;
    agent.contexts.get(&agent, &id).await?.restart().await?;
    Ok(StatusCode::OK.into_response())
}

/// Interrupts the code that runs in a context, and ends it with its interpreter if that does not help.
async fn interrupt(
    State(agent): State<Arc<Agent>>,
    UrlPath(id): UrlPath<String>,
    request: Request,
) -> Result<Response, CallError> {
    check_token(&agent, request.headers())?;
    let asked: InterruptRequest = read(request).await?;
    let grace = Duration::from_millis(asked.grace_ms.min(MAX_GRACE_MS));
    let interrupted = agent.contexts.find(&id)?.interrupt(grace).await?;
    let restarted = interrupted == Interrupted::Restarted;
    Ok(axum::Json(InterruptResponse { restarted }).into_response())
}

async fn remove(
    State(agent): State<Arc<Agent>>,
    UrlPath(id): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, CallError> {
    check_token_if_shown(&agent, &headers)?;
    agent.contexts.remove(&id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn describe(context: &Context) -> ContextInfo {
    ContextInfo {
        id: context.id.clone(),
        language: context.language.name().to_owned(),
        cwd: context.directory.to_string_lossy().into_owned(),
        busy: context.is_busy(),
    }
}

fn parse(language: Option<&str>) -> Result<Language, UnknownLanguage> {
    language.map_or(Ok(Language::DEFAULT), Language::parse)
}

fn check_token(agent: &Agent, headers: &HeaderMap) -> Result<(), CallError> {
    if token_is_right(agent, headers) { Ok(()) } else { Err(CallError::Token) }
}

/// The SDKs show the token with `/execute` only. A wrong one is refused all the same.
fn check_token_if_shown(agent: &Agent, headers: &HeaderMap) -> Result<(), CallError> {
    if headers.contains_key(ACCESS_TOKEN) { check_token(agent, headers) } else { Ok(()) }
}

async fn read<T: DeserializeOwned>(request: Request) -> Result<T, CallError> {
    let bytes =
        to_bytes(request.into_body(), MAX_BODY).await.map_err(|error| CallError::Body(error.to_string()))?;
    // A call without a body asks for the defaults.
    let bytes = if bytes.is_empty() { &b"{}"[..] } else { &bytes };
    serde_json::from_slice(bytes).map_err(|error| CallError::Body(error.to_string()))
}

impl IntoResponse for CallError {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::Context(ContextError::Unknown(_)) => StatusCode::NOT_FOUND,
            Self::Context(ContextError::TooMany | ContextError::Busy) => StatusCode::TOO_MANY_REQUESTS,
            Self::Context(ContextError::Launch(LaunchError::Spawn(SpawnError::NotFound(_)))) => {
                StatusCode::NOT_IMPLEMENTED
            }
            Self::Context(ContextError::Launch(_)) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        };
        (status, self.to_string()).into_response()
    }
}
