//! The code interpreter's protocol: code in contexts that keep their state.
//!
//! ```text
//!  POST /execute ──▶ Contexts ──▶ Context ── queue ──▶ Worker ── socket ──▶ driver (python3, node, bash, R, java)
//!        ▲                                               │  ◀── stdout, stderr ──┘
//!        └───────────── lines, a few at a time ──────────┘
//! ```
//!
//! A context is a worker task and a driver process. Executions of one context wait for each other; contexts do not. The client
//! is the brake: what it does not read is not taken from the driver, whose writes then block. A client that goes away
//! interrupts its execution; one that is lost because this guest was forked does not. A driver that ends takes its variables along and is started anew by the next execution.

mod bash;
mod body;
mod contexts;
mod control;
mod epoch;
mod http;
mod job;
mod language;
mod launch;
mod line;
mod message;
mod place;
mod text;
mod words;
mod worker;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;

pub use contexts::{Contexts, Forked};
pub use message::ForkIdentity;

use crate::agent::Agent;

pub fn router(agent: Arc<Agent>) -> Router {
    // Each reader of a body has its own limit.
    http::routes().layer(DefaultBodyLimit::disable()).with_state(agent)
}
