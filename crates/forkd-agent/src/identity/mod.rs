//! Who this sandbox is. A fork has its parent's memory, so it has its name, its clock and its random numbers too, until the
//! host gives it its own.
//!
//! The host's connection to the guest is the only way here: the daemon refuses `/forkd/` from outside.

mod apply;
pub mod boot_id;
mod entropy;
mod gate;
mod guest;
mod hooks;
mod host_keys;
mod http;
pub mod line;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::post;

pub use gate::{Closed, Gate};
pub use guest::{Foreign, Guest, GuestError, Own};

use crate::agent::Agent;

/// The calls around a fork, which the gate does not hold.
pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route("/forkd/identity", post(http::identity))
        .route("/forkd/close", post(http::close))
        .route("/forkd/open", post(http::open))
}

/// Puts everything that `router` serves behind the gate.
pub fn behind_gate(agent: &Arc<Agent>, router: Router) -> Router {
    router.layer(from_fn_with_state(Arc::clone(agent), gate::guard))
}
