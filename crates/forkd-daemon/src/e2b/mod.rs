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
mod snapshots;
mod templates;

use std::path::Path;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use axum::middleware::from_fn;
use axum::routing::{delete, get, post, put};

use crate::app::{App, AppError, Shared};
use crate::idempotency;
use forkd_store::Tag;

pub(crate) use builds::upload_caller;
pub(crate) use data::serve;
pub(crate) use error::dress;
pub use keys::KeyError;
pub(crate) use routing::{Aim, Plane};
pub(crate) use templates::clean_up;

/// What E2B's side of the daemon remembers.
#[derive(Debug)]
pub(crate) struct E2b {
    keys: keys::Keys,
    builds: builds::Builds,
    names: names::Names,
}

impl E2b {
    pub fn open(home: &Path) -> Result<E2b, AppError> {
        Ok(E2b {
            keys: keys::Keys::open(home)?,
            builds: builds::Builds::default(),
            names: names::Names::open(home)?,
        })
    }

    /// The snapshot that the name of a built template means.
    pub fn current(&self, template: &str) -> Option<Tag> {
        self.names.current(&template.parse().ok()?)
    }
}

/// Where a request belongs.
pub(crate) fn plane(app: &App, request: &Request) -> Plane {
    let asked = routing::Asked { method: request.method(), uri: request.uri(), headers: request.headers() };
    let ids = || app.engine.sandboxes().iter().map(|view| view.record.id.to_string()).collect();
    routing::plane(asked, &app.e2b.keys, ids)
}

/// The control plane. Paths of older clients lead to the same handlers.
pub(crate) fn routes() -> Router<Shared> {
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
