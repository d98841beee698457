//! The daemon's front door: HTTP in, answers out, and no decision in between.
//!
//! ```text
//! connection (server)  ──▶  gate  ──▶  route  ──▶  the engine
//!  Unix socket or TCP,      id, caller,   routes/, one file a resource:
//!  TLS, limits, patience    audit,        converts, asks, converts back
//!                           metrics, shape of errors
//! ```
//!
//! Logs go through `tracing`. Their levels: **error** is for the operator, who has to do something; **warn** is for the
//! operator, too, when something went on in a lesser way; **info** is what a running daemon does that is not a request (start,
//! stop, reload, tokens changed); **debug** has requests that were refused and connections that broke, which is the callers'
//! business. Requests themselves are in the audit log. A failure is logged once, at the gate, under its request's id.

pub mod app;
pub mod audit;
pub mod auth;
mod body;
pub mod build_guests;
pub mod config;
mod during;
mod egress;
mod engine_error;
pub mod error;
mod event_log;
pub mod extract;
mod gate;
pub mod housekeeping;
pub mod idempotency;
mod jobs;
mod kept;
mod library_error;
mod library_view;
pub mod metrics;
mod ndjson;
mod openapi;
pub mod operations;
mod pipe;
pub mod protocol;
mod proxy;
mod removals;
pub mod request_id;
pub mod routes;
pub mod server;
mod sharing;
pub mod signals;
pub mod snapshot_policy;
mod tenancy;
pub mod trace;
mod upload;
mod views;
mod whole_file;

pub use app::{App, Shared};
pub use server::Server;
