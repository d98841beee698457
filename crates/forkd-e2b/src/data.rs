//! The data plane: a request is forwarded to a port of a sandbox.
//!
//! ```text
//!   port of the agent    /health for everybody; the rest for who shows the access token, or has signed the link to a file
//!   other ports          for everybody who knows the id, unless the sandbox was made with a token for its traffic
//! ```
//!
//! The agent itself requires no token: all of its clients were checked here. Tokens and signatures of links end here, too: none of them
//! is ever in a guest's memory, so none leaves the host in a snapshot. A paused sandbox is resumed if that was
//! requested, and is not found otherwise.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use forkd_api::error::ErrorCode;
use forkd_engine::{EngineError, SandboxHandle, SandboxState};
use forkd_envd::HEALTH;
use forkd_envd::caller::ACCESS_TOKEN;
use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::files::FILES;
use forkd_envd::interpreter::is_contexts;
use forkd_envd::port::{ENVD, is_agents};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::about::About;
use super::keys::{Keys, Purpose};
use super::last_words::with_last_words;
use super::routing::{self, SANDBOX_ID, SANDBOX_PORT};
use crate::App;
use forkd_daemon::auth::{self, Peer};
use forkd_daemon::error::{ApiError, Failure, PassThrough};
use forkd_daemon::operations::during;
use forkd_daemon::operations::{Destination, Forwarded, forward};
use forkd_daemon::protocol::Aim;

const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// Why a request does not go on.
#[derive(Debug)]
enum Refusal {
    /// What is asked for is not a sandbox or a port.
    Wrong(&'static str),
    NotFound,
    /// Why, of one that was there when the request came.
    Ended(String),
    Closed(u16),
    /// The agent is not for whoever asks.
    Unauthorized {
        connect: bool,
        message: String,
    },
    /// The port is not.
    Traffic {
        port: u16,
        missing: bool,
    },
    Other(ApiError),
}

/// Passes a request on, or says why not.
pub(crate) async fn serve(app: &App, peer: &Peer, aim: Aim, request: Request) -> Response {
    let navigates = navigates(request.method(), request.headers());
    let (id, port, by_name) = match aim {
        Aim::Port { id, port, by_name } => (id, port, by_name),
        Aim::Wrong(text) => return Refusal::Wrong(text).answer("", false),
    };
    let result = pass(app, peer, &id, port, by_name, request).await;
    result.unwrap_or_else(|refusal| refusal.answer(&id, navigates))
}

async fn pass(
    app: &App,
    peer: &Peer,
    id: &str,
    port: u16,
    by_name: bool,
    mut request: Request,
) -> Result<Response, Refusal> {
    let sandbox = app.engine.sandbox(id).map_err(|_| Refusal::NotFound)?;
    let about = About::of(&sandbox.view().record);
    check(app, id, port, &about, &request)?;
    let agent = sandbox.awake_agent().await.map_err(|error| match error {
        EngineError::Timeout | EngineError::Call(_) => Refusal::Other(error.into()),
        _ => Refusal::NotFound,
    })?;
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let is_file = is_agents(port) && request.uri().path() == FILES;
    let target = if is_file { without_signature(target) } else { target.to_owned() };
    let host = guest_host(port, by_name, &about, request.headers());
    keep_ours(&app.e2b.keys, request.headers_mut());
    let address = match peer {
        Peer::Tcp { address, .. } => Some(address.ip()),
        Peer::Unix { .. } => None,
    };
    let forwarded = Forwarded { address, encrypted: peer.speaks_tls(), prefix: None };
    let to = Destination { agent, port, target, host, forwarded };
    let path = request.uri().path().to_owned();
    let answered = during(&sandbox, forward(app, to, request)).await;
    let answered = answered.map_err(|error| explain(error, port, &sandbox))?;
    Ok(if is_agents(port) { with_last_words(answered, &path, &sandbox) } else { answered })
}

/// An error on the way, as a refusal. A sandbox that is paused meanwhile is not found.
fn explain(error: ApiError, port: u16, sandbox: &SandboxHandle) -> Refusal {
    match error.code() {
        ErrorCode::SandboxEnded => Refusal::Ended(error.to_string()),
        _ if sandbox.view().state != SandboxState::Running => Refusal::NotFound,
        ErrorCode::NotFound | ErrorCode::WrongState => Refusal::NotFound,
        ErrorCode::PortClosed => Refusal::Closed(port),
        _ => Refusal::Other(error),
    }
}

/// Whether whoever asks may.
fn check(app: &App, id: &str, port: u16, about: &About, request: &Request) -> Result<(), Refusal> {
    let keys = &app.e2b.keys;
    let (path, headers) = (request.uri().path(), request.headers());
    let traffic = headers.get(TRAFFIC_TOKEN);
    let has_traffic = traffic.is_some_and(|shown| keys.is_right(Purpose::Traffic, id, shown.as_bytes()));
    if port != ENVD && !about.public_traffic && !has_traffic {
        return Err(Refusal::Traffic { port, missing: traffic.is_none() });
    }
    if !is_agents(port) || !about.secure || path == HEALTH {
        return Ok(());
    }
    // Of the interpreter's paths, clients show the access token only to that which runs code.
    if port != ENVD && is_contexts(path) && has_traffic {
        return Ok(());
    }
    let shown = headers.get(ACCESS_TOKEN);
    if shown.is_some_and(|shown| keys.is_right(Purpose::Access, id, shown.as_bytes())) {
        return Ok(());
    }
    let connect = path.contains('.') && path != FILES;
    let unauthorized = |message: &str| Refusal::Unauthorized { connect, message: message.to_owned() };
    // A token in the headers counts, also a wrong one.
    if path != FILES || shown.is_some() {
        return Err(unauthorized("the access token is missing or wrong"));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let query = routing::file_query(request.uri());
    let operation = routing::operation(request.method());
    let token = keys.token(Purpose::Access, id);
    query.check_signature(&token, operation, now).map_err(|error| unauthorized(&error.to_string()))
}

/// What the guest sees as its name: that by which it was asked, if it was; what the sandbox was made with, if anything.
fn guest_host(port: u16, by_name: bool, about: &About, headers: &HeaderMap) -> HeaderValue {
    let masked = about.mask_host.as_ref().map(|mask| mask.replace("${PORT}", &port.to_string()));
    let masked = masked.and_then(|masked| HeaderValue::try_from(masked).ok());
    let asked = headers.get(header::HOST).filter(|_| by_name).cloned();
    let local = || HeaderValue::try_from(format!("localhost:{port}"));
    masked.or(asked).or_else(|| local().ok()).unwrap_or_else(|| HeaderValue::from_static("localhost"))
}

/// Takes out what is between the client and this daemon, whichever sandbox it is for.
fn keep_ours(keys: &Keys, headers: &mut HeaderMap) {
    auth::keep_tokens(headers);
    for name in [SANDBOX_ID, SANDBOX_PORT, TRAFFIC_TOKEN] {
        headers.remove(name);
    }
    let ours =
        |shown: &HeaderValue| shown.to_str().is_ok_and(|shown| keys.holder(Purpose::Access, shown).is_some());
    if headers.get_all(ACCESS_TOKEN).iter().any(ours) {
        headers.remove(ACCESS_TOKEN);
    }
}

/// The target of a link to a file, without what signs it. The rest is as it was written.
fn without_signature(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let is_kept = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        !matches!(&*percent_decode_str(name).decode_utf8_lossy(), "signature" | "signature_expiration")
    };
    let kept: Vec<&str> = query.split('&').filter(is_kept).collect();
    if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) }
}

/// Whether somebody sits at a browser and waits for a page.
fn navigates(method: &Method, headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let page = text("accept").contains("text/html");
    *method == Method::GET && page && matches!(text("sec-fetch-mode"), "" | "navigate")
}

impl Refusal {
    fn answer(self, id: &str, navigates: bool) -> Response {
        let (code, status, body) = match self {
            Refusal::Wrong(text) => {
                let mut response = (StatusCode::BAD_REQUEST, text).into_response();
                response.extensions_mut().insert(PassThrough);
                return response;
            }
            Refusal::NotFound => (
                ErrorCode::NotFound,
                502,
                json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 }),
            ),
            // As one that is not found: clients know no other status of a sandbox that is gone.
            Refusal::Ended(message) => {
                (ErrorCode::SandboxEnded, 502, json!({ "sandboxId": id, "message": message, "code": 502 }))
            }
            Refusal::Closed(port) => (
                ErrorCode::PortClosed,
                502,
                json!({ "sandboxId": id, "message": "The sandbox is running but port is not open", "port": port, "code": 502 }),
            ),
            Refusal::Unauthorized { connect: true, message } => {
                (ErrorCode::Unauthorized, 401, json!(ConnectError::new(Code::Unauthenticated, message)))
            }
            Refusal::Unauthorized { connect: false, message } => {
                (ErrorCode::Unauthorized, 401, json!({ "code": 401, "message": message }))
            }
            Refusal::Traffic { port, missing } => {
                let how = if missing { "missing" } else { "invalid" };
                let message = format!("The traffic access token is {how}: send it as {TRAFFIC_TOKEN}");
                (
                    ErrorCode::Forbidden,
                    403,
                    json!({ "sandboxId": id, "message": message, "port": port, "code": 403 }),
                )
            }
            Refusal::Other(error) => {
                let status = error.code().status();
                let body = json!({ "sandboxId": id, "message": error.to_string(), "code": status });
                (error.code(), status, body)
            }
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        let text = body["message"].as_str().unwrap_or_default().to_owned();
        let mut response = match navigates {
            true => (status, page(id, &body)).into_response(),
            false => (status, Json(body)).into_response(),
        };
        response.extensions_mut().insert(Failure { code, text, hint: None, hint_code: None, detail: None });
        response
    }
}

/// The same for people. Ids and messages are the daemon's own, without anything that HTML could take for itself.
fn page(id: &str, body: &Value) -> Html<String> {
    let message = body["message"].as_str().unwrap_or_default();
    let escaped = |text: &str| {
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
    };
    let port = body["port"].as_u64().map(|port| format!(", port {port}")).unwrap_or_default();
    Html(format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>{message}</title>\
         <body style=\"font-family:sans-serif;max-width:40em;margin:4em auto\"><h1>{message}</h1><p>Sandbox {id}{port}</p></body></html>\n",
        message = escaped(message),
        id = escaped(id),
    ))
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn answered(refusal: Refusal, navigates: bool) -> (u16, String, String) {
        let response = refusal.answer("i1", navigates);
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, kind, String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn no_guest_sees_a_token_or_a_signature() {
        for (target, expected) in [
            (
                "/files?path=%2Fa%20b&username=u&signature=v1_x&signature_expiration=9",
                "/files?path=%2Fa%20b&username=u",
            ),
            ("/files?signature=v1_x&path=/a", "/files?path=/a"),
            ("/files?%73ignature=v1_x", "/files"),
            ("/files?path=signature", "/files?path=signature"),
            ("/files", "/files"),
        ] {
            assert_eq!(without_signature(target), expected);
        }
        let home = tempfile::tempdir().unwrap();
        let keys = Keys::open(home.path()).unwrap();
        let left = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).unwrap());
            keep_ours(&keys, &mut headers);
            !headers.is_empty()
        };
        // Also those of another sandbox, which a client shows by mistake.
        assert!(!left(ACCESS_TOKEN, &keys.token(Purpose::Access, "i1")));
        assert!(!left(TRAFFIC_TOKEN, &keys.token(Purpose::Traffic, "i1")));
        assert!(left(ACCESS_TOKEN, "what a program of the guest wants"));
        let mut twice = HeaderMap::new();
        twice.append(ACCESS_TOKEN, HeaderValue::from_static("x"));
        twice.append(ACCESS_TOKEN, HeaderValue::from_str(&keys.token(Purpose::Access, "i2")).unwrap());
        keep_ours(&keys, &mut twice);
        assert!(twice.is_empty());
    }

    #[tokio::test]
    async fn refusals_have_the_words_that_clients_look_for() {
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let (status, _, gone) = answered(Refusal::NotFound, false).await;
        assert_eq!(
            (status, json(&gone)),
            (502, json!({"sandboxId": "i1", "message": "The sandbox was not found", "code": 502}))
        );
        let (status, _, closed) = answered(Refusal::Closed(80), false).await;
        assert_eq!((status, json(&closed)["port"].clone()), (502, json!(80)));
        assert!(closed.contains("port is not open"));
        let (status, kind, wrong) = answered(Refusal::Wrong("Invalid sandbox port"), true).await;
        assert_eq!(
            (status, kind.as_str(), wrong.as_str()),
            (400, "text/plain; charset=utf-8", "Invalid sandbox port")
        );
        let (status, _, rpc) =
            answered(Refusal::Unauthorized { connect: true, message: "x".into() }, false).await;
        assert_eq!((status, json(&rpc)["code"].clone()), (401, json!("unauthenticated")));
        let (status, kind, page) = answered(Refusal::Closed(80), true).await;
        assert_eq!(status, 502);
        assert!(kind.starts_with("text/html") && page.contains("<h1>") && page.contains("port 80"));
    }

    #[test]
    fn only_those_who_wait_for_a_page_get_one() {
        let with = |list: &[(&'static str, &'static str)]| -> HeaderMap {
            list.iter()
                .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)))
                .collect()
        };
        let browser = [("accept", "text/html,application/xhtml+xml"), ("sec-fetch-mode", "navigate")];
        assert!(navigates(&Method::GET, &with(&browser)));
        assert!(navigates(&Method::GET, &with(&browser[..1])));
        assert!(!navigates(&Method::POST, &with(&browser)));
        assert!(!navigates(&Method::GET, &with(&[browser[0], ("sec-fetch-mode", "cors")])));
        assert!(!navigates(&Method::GET, &with(&[("accept", "*/*")])));
    }
}
