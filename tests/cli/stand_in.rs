//! A stand-in for the daemon, behind the socket of a home: answers as it is told to, and remembers what it was asked.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use forkd_tests::engine::process::Failure;
use futures_util::{SinkExt, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

/// The id of its only sandbox.
pub const ID: &str = "i0123456789abcdefghi";

/// What a program does: each is done in turn.
#[derive(Debug, Clone)]
pub enum Act {
    Stdout(&'static [u8]),
    Stderr(&'static [u8]),
    /// Waits for a message of the client's with these words.
    Until(&'static str),
    /// What it has read so far, on stdout.
    Echo,
    Exit(i32),
    /// The connection breaks.
    Break,
}

type Answer = Box<dyn Fn(&str, &Value) -> Option<(u16, String)> + Send + Sync>;

struct Shared {
    answer: Answer,
    program: Vec<Act>,
    asked: Mutex<Vec<String>>,
}

/// It ends with this.
pub struct StandIn {
    shared: Arc<Shared>,
    _runtime: Runtime,
}

impl StandIn {
    /// `answer` is given requests such as `GET /v1/sandboxes` with what they carry, as JSON or as text; what it does not answer
    /// is not found.
    /// Every program does the same.
    pub fn start(
        home: &Path,
        program: &[Act],
        answer: impl Fn(&str, &Value) -> Option<(u16, String)> + Send + Sync + 'static,
    ) -> Result<StandIn, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let listener = runtime.block_on(async { UnixListener::bind(home.join("forkd.sock")) })?;
        let shared =
            Arc::new(Shared { answer: Box::new(answer), program: program.to_vec(), asked: Mutex::default() });
        runtime.spawn(serve(listener, Arc::clone(&shared)));
        Ok(StandIn { shared, _runtime: runtime })
    }

    /// What it was asked, without bodies, and what programs were sent.
    pub fn asked(&self) -> Vec<String> {
        self.shared.asked.lock().expect("nobody panics with it").clone()
    }
}

/// What is known of the only sandbox.
pub fn sandbox() -> Value {
    json!({
        "id": ID, "snapshot_tag": "base", "state": "running", "created_at_unix": 1, "vcpus": 1, "memory_mib": 64,
        "disk_mib": 16, "branches": [], "metadata": {},
    })
}

pub fn snapshot(tag: &str) -> Value {
    json!({
        "tag": tag, "status": "ready", "created_at_unix": 1, "children": [], "vcpus": 1, "memory_mib": 64, "disk_mib": 16,
        "size": { "memory_bytes": 0, "disk_bytes": 0 }, "loaded": true,
    })
}

pub fn image(id: &str) -> Value {
    json!({
        "id": id, "names": [], "shared": false, "created_at_unix": 1, "size_bytes": 1, "disk_bytes": 1,
        "default_user": "root", "source": { "kind": "build" }, "layers": [],
        "config": { "env": {}, "entrypoint": [], "cmd": [], "labels": {} },
    })
}

/// The answers that a daemon with the snapshot `base` and one sandbox of it would give.
pub fn usual(request: &str, _: &Value) -> Option<(u16, String)> {
    let created = json!({ "sandboxes": [sandbox()], "timing": { "restored_us": 1000, "ready_us": 2000 } });
    let answer = match request {
        "GET /v1/snapshots/base" => (200, snapshot("base")),
        "POST /v1/sandboxes" => (201, created),
        "GET /healthz" => (200, json!({ "ok": true })),
        request if request == format!("GET /v1/sandboxes/{ID}") => (200, sandbox()),
        request if request == format!("DELETE /v1/sandboxes/{ID}") => return Some((204, String::new())),
        _ => return None,
    };
    Some((answer.0, answer.1.to_string()))
}

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| reply(request, Arc::clone(&shared)));
            let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            // A client that goes away has its reasons.
            let _ = connection.with_upgrades().await;
        });
    }
}

async fn reply(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Full<Bytes>>, Infallible> {
    let asked = format!("{} {}", request.method(), request.uri());
    let remember = |what: String| shared.asked.lock().expect("nobody panics with it").push(what);
    if let Some(key) = request.headers().get(SEC_WEBSOCKET_KEY) {
        remember(format!("WebSocket {asked}"));
        let accept = derive_accept_key(key.as_bytes());
        tokio::spawn(run(request, Arc::clone(&shared)));
        let response = Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header(CONNECTION, "upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_ACCEPT, accept);
        return Ok(response.body(Full::default()).expect("the answer is one"));
    }
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    remember(asked.clone());
    let body = serde_json::from_slice(&body).unwrap_or_else(|_| String::from_utf8_lossy(&body).into());
    let (status, text) = (shared.answer)(&asked, &body)
        .unwrap_or_else(|| (404, json!({ "error": "there is none", "code": "not_found" }).to_string()));
    Ok(Response::builder().status(status).body(Full::from(text)).expect("the answer is one"))
}

/// The program.
async fn run(request: Request<Incoming>, shared: Arc<Shared>) {
    let Ok(upgraded) = hyper::upgrade::on(request).await else { return };
    let mut socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
    let remember = |what: &Message| {
        let text = match what {
            Message::Text(text) => text.to_string(),
            Message::Binary(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => return String::new(),
        };
        shared.asked.lock().expect("nobody panics with it").push(text.clone());
        text
    };
    let mut read = Vec::new();
    let Some(Ok(start)) = socket.next().await else { return };
    remember(&start);
    let _ = socket.send(Message::text(r#"{"started":{"pid":7}}"#)).await;
    for act in &shared.program {
        let output = |stream: u8, bytes: &[u8]| Some(Message::binary([&[stream], bytes].concat()));
        let message = match act {
            Act::Stdout(bytes) => output(1, bytes),
            Act::Stderr(bytes) => output(2, bytes),
            Act::Echo => output(1, &read),
            Act::Until(words) => loop {
                let Some(Ok(message)) = socket.next().await else { return };
                if let Message::Binary(bytes) = &message {
                    read.extend_from_slice(bytes);
                }
                if remember(&message).contains(words) {
                    break None;
                }
            },
            Act::Exit(code) => Some(Message::text(
                json!({ "exited": { "exit_code": code, "timed_out": *code == 137 } }).to_string(),
            )),
            Act::Break => return,
        };
        if let Some(message) = message
            && socket.send(message).await.is_err()
        {
            return;
        }
    }
    // As the daemon, it waits until the client has closed its side, too.
    let _ = socket.close(None).await;
    while let Some(Ok(_)) = socket.next().await {}
}
