//! The daemon under test: the real one, with a few routes that show what its frame does.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::{get, post};
use forkd_api::error::ErrorCode;
use forkd_api::token::{Scope, TokenLimits};
use forkd_daemon::auth::{Caller, TokenFile};
use forkd_daemon::build_guests::EngineGuests;
use forkd_daemon::config::{Config, Limits, Socket, Tcp};
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::{Json, Path, Query, Upload};
use forkd_daemon::server::Handle;
use forkd_daemon::{App, Server, Shared, auth, housekeeping, idempotency, routes};
use forkd_engine::library::Library;
use forkd_engine::{self as engine, Engine, Settings};
use forkd_image::images::ImageStore;
use forkd_image::kernels::KernelStore;
use http_body_util::BodyExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::client::To;

pub struct Daemon {
    pub directory: tempfile::TempDir,
    pub address: SocketAddr,
    pub socket: PathBuf,
    pub handle: Handle,
    pub tokens: TokenFile,
    pub task: JoinHandle<()>,
}

impl Daemon {
    pub async fn start() -> Daemon {
        Daemon::start_with(|_| {}).await
    }

    /// With a configuration that was changed before.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> Daemon {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = Config {
            home: directory.path().into(),
            socket: Some(Socket { path: directory.path().join("s"), group: None }),
            tcp: Some(Tcp { address: SocketAddr::from(([127, 0, 0, 1], 0)), tls: None }),
            audit: Some(directory.path().join("audit.log")),
            snapshot_policy: None,
            mcp: Default::default(),
            limits: Limits::default(),
            spans: None,
        };
        change(&mut config);
        let app = app(&config).await;
        housekeeping::start(&app);
        let server = Server::bind(&config, app.clone()).await.expect("a server");
        let (address, socket, handle) = (
            server.address().expect("a port"),
            server.socket().expect("a socket").to_owned(),
            server.handle(),
        );
        let task = tokio::spawn(server.serve(routes::router_with(&app, more())));
        let tokens = TokenFile::new(directory.path());
        Daemon { directory, address, socket, handle, tokens, task }
    }

    pub fn tcp(&self) -> To<'_> {
        To::Tcp(self.address)
    }

    pub fn unix(&self) -> To<'_> {
        To::Unix(&self.socket)
    }

    /// A new token's secret.
    pub fn token(&self, name: &str, scope: Scope) -> String {
        self.tokens
            .create(name, &Default::default(), scope, TokenLimits::default())
            .expect("a token")
            .1
            .expose()
            .to_owned()
    }

    /// The audit log, when it has this many lines.
    pub async fn audit(&self, lines: usize) -> Vec<Value> {
        for _ in 0..500 {
            let text = std::fs::read_to_string(self.directory.path().join("audit.log")).expect("a log");
            if text.lines().count() >= lines && text.ends_with('\n') {
                return text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the audit log has less than {lines} lines");
    }

    pub async fn stop(self) {
        self.handle.stop();
        self.task.await.expect("an end without a panic");
    }
}

/// An app whose engine has nothing, and no program to make VMs with.
pub async fn app(config: &Config) -> Shared {
    let (images, kernels) = (ImageStore::new(&config.home), KernelStore::new(&config.home));
    let settings = Settings {
        program: config.home.join("forkd-vmm"),
        root: config.home.join("engine"),
        images: images.clone(),
        limits: engine::Limits {
            sandboxes: 10,
            memory_bytes: 1 << 40,
            zygote_bytes: 1 << 40,
            free_disk_bytes: 0,
        },
        networking: engine::Networking::None,
        cgroup: None,
        users: Default::default(),
        prefault: false,
    };
    let (engine, _) = Engine::start(settings).await.expect("an engine");
    let library = Library { images, kernels, agent: config.home.join("agent"), emulated: false };
    let guests = EngineGuests { engine: engine.clone(), library: library.clone() };
    let e2b = forkd_e2b::E2b::open(&config.home).expect("its keys");
    App::new(config, engine, library, Box::new(guests), e2b).expect("an app")
}

fn more() -> Router<Shared> {
    let create = post(create).route_layer(from_fn(idempotency::once));
    let admin = post(async || "done").route_layer(from_fn(auth::require(Scope::Admin)));
    Router::new()
        .route("/test/echo", post(async |Json(value): Json<Value>| Json(value)))
        .route("/test/strict", post(async |Json(_): Json<Strict>| "fine"))
        .route("/test/query", get(async |Query(_): Query<Strict>| "fine"))
        .route("/test/who", get(who))
        .route("/test/admin", admin)
        .route("/test/create", create)
        .route("/test/slow", get(slow))
        .route("/test/stuck", get(std::future::pending::<()>))
        .route("/test/upload", post(upload))
        .route("/test/panic", get(panics))
        .route(
            "/test/fault",
            get(async || -> Answer<()> { Err(ApiError::internal(&std::io::Error::other("s3cret"))) }),
        )
        .route("/test/plain", get(async || (StatusCode::CONFLICT, "as text")))
        .route("/test/large", get(async || vec![b'x'; 32 << 20]))
        .route("/v1/sandboxes/{id}/number/{number}", get(async |Path((id, _)): Path<(String, u8)>| id))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Strict {
    #[serde(rename = "number")]
    _number: u32,
}

async fn who(axum::Extension(caller): axum::Extension<Caller>) -> Json<Value> {
    Json(json!({"name": caller.name, "scope": caller.scope}))
}

async fn slow() -> &'static str {
    tokio::time::sleep(Duration::from_millis(500)).await;
    "slow"
}

async fn upload(Upload(mut body): Upload) -> Answer<String> {
    let mut size = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ApiError::new(ErrorCode::RequestTimeout, "the upload stands still"))?;
        size += frame.data_ref().map_or(0, bytes::Bytes::len);
    }
    Ok(size.to_string())
}

async fn panics() -> &'static str {
    panic!("s3cret")
}

/// How often something was created.
pub static CREATED: AtomicU64 = AtomicU64::new(0);

#[derive(Deserialize)]
struct Create {
    #[serde(default)]
    fail: Option<ErrorCode>,
    #[serde(default)]
    delay_ms: u64,
}

async fn create(State(_): State<Shared>, Json(wanted): Json<Create>) -> Answer<Json<Value>> {
    tokio::time::sleep(Duration::from_millis(wanted.delay_ms)).await;
    let number = CREATED.fetch_add(1, Ordering::SeqCst);
    match wanted.fail {
        Some(code) => Err(ApiError::new(code, format!("failure {number}"))),
        None => Ok(Json(json!({"number": number}))),
    }
}
