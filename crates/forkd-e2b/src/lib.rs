//! E2B's protocol, so that programs written for it run here unchanged.
//!
//! ```text
//!   E2B_API_URL      ──▶ gate ──▶ routing ──┬──▶ control plane: sandboxes, snapshots, templates ──▶ the engine
//!   E2B_SANDBOX_URL  ──▶                    └──▶ data plane: a port of a sandbox ──▶ the agent in its guest, or its own servers
//! ```
//!
//! Both planes are on the daemon's port. `routing` tells them apart by headers, host name and tokens. Handlers call what forkd's
//! own API calls: the same admission, limits of tokens, audit log, metrics and idempotency hold. What E2B wants to know of a
//! sandbox beyond that is kept in its record (`about`). `docs/e2b.md` says what differs from E2B.

mod about;
mod builds;
mod data;
mod error;
mod fork;
mod host;
mod keys;
mod last_words;
mod life;
mod list;
mod metrics;
mod models;
mod names;
mod network;
mod paging;
mod query;
mod routing;
mod sandboxes;
mod series;
mod snapshots;
mod templates;

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRef, Request};
use axum::http::{HeaderMap, Uri, header};
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::{delete, get, post, put};
use forkd_daemon::app::{self, Shared};
use forkd_daemon::auth::{Caller, Peer};
use forkd_daemon::idempotency;
use forkd_daemon::operations::KeptError;
use forkd_daemon::protocol::{Aim, Plane, Protocol};
use forkd_store::Tag;
use futures_util::future::BoxFuture;

pub use keys::KeyError;

/// What is remembered for E2B's clients.
#[derive(Debug)]
pub struct E2b {
    keys: keys::Keys,
    builds: builds::Builds,
    names: names::Names,
    series: series::Series,
}

/// What was remembered cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Keys(#[from] KeyError),
    #[error(transparent)]
    Names(#[from] KeptError),
}

impl E2b {
    pub fn open(home: &Path) -> Result<Arc<E2b>, OpenError> {
        Ok(Arc::new(E2b {
            keys: keys::Keys::open(home)?,
            builds: builds::Builds::default(),
            names: names::Names::open(home)?,
            series: series::Series::default(),
        }))
    }
}

/// The state of every handler: the daemon, and what is remembered here.
#[derive(Debug, Clone)]
pub(crate) struct App {
    daemon: Shared,
    e2b: Arc<E2b>,
}

impl Deref for App {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.daemon
    }
}

impl FromRef<App> for Shared {
    fn from_ref(app: &App) -> Shared {
        app.daemon.clone()
    }
}

impl Protocol for E2b {
    fn routes(self: Arc<Self>, app: &Shared) -> Router<Shared> {
        routes().with_state(App { daemon: app.clone(), e2b: self })
    }

    fn plane(&self, app: &app::App, request: &Request) -> Plane {
        let asked =
            routing::Asked { method: request.method(), uri: request.uri(), headers: request.headers() };
        let ids = || app.engine.sandboxes().iter().map(|view| view.record.id.to_string()).collect();
        routing::plane(asked, &self.keys, ids)
    }

    fn link_caller(&self, uri: &Uri) -> Option<Caller> {
        builds::upload_caller(&self.keys, uri)
    }

    fn dress(&self, response: Response) -> Response {
        error::dress(response)
    }

    fn serve(
        self: Arc<Self>,
        app: Shared,
        peer: Peer,
        aim: Aim,
        request: Request,
    ) -> BoxFuture<'static, Response> {
        let app = App { daemon: app, e2b: self };
        Box::pin(async move { data::serve(&app, &peer, aim, request).await })
    }

    /// The snapshot that the name of a built template means.
    fn snapshot(&self, name: &str) -> Option<Tag> {
        self.names.current(&name.parse().ok()?)
    }

    fn chores(self: Arc<Self>, app: Shared) -> BoxFuture<'static, ()> {
        let app = App { daemon: app, e2b: self };
        Box::pin(async move {
            templates::clean_up(&app).await;
            tokio::select! {
                () = series::measure(&app) => {}
                () = app.stopping() => {}
            }
        })
    }
}

/// The control plane. Paths of older clients lead to the same handlers.
fn routes() -> Router<App> {
    let creating = Router::new()
        .route("/sandboxes", post(sandboxes::create_v1))
        .route("/v2/sandboxes", post(sandboxes::create))
        .route("/sandboxes/{id}/fork", post(fork::fork))
        .route("/sandboxes/{id}/snapshots", post(snapshots::create))
        .route_layer(from_fn(idempotency::once));
    Router::new()
        .route("/sandboxes", get(list::list_running))
        .route("/v2/sandboxes", get(list::list))
        .route("/sandboxes/{id}", get(sandboxes::get).delete(sandboxes::kill))
        .route("/sandboxes/{id}/timeout", post(life::set_timeout))
        .route("/sandboxes/{id}/refreshes", post(life::refresh))
        .route("/sandboxes/{id}/pause", post(life::pause))
        .route("/sandboxes/{id}/connect", post(life::connect))
        .route("/v2/sandboxes/{id}/connect", post(life::connect))
        .route("/sandboxes/{id}/resume", post(life::resume))
        .route("/sandboxes/{id}/metrics", get(metrics::metrics))
        .route("/sandboxes/{id}/network", put(sandboxes::set_network))
        .route("/snapshots", get(snapshots::list))
        .route("/templates/{id}", delete(templates::remove))
        .merge(creating)
        .merge(builds::routes())
}

/// The domain below which a client finds the ports of sandboxes.
fn domain(headers: &HeaderMap) -> Option<String> {
    headers.get(header::HOST).and_then(|value| value.to_str().ok()).and_then(host::domain_of)
}
