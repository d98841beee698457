//! `process.Process`: starting processes, and talking to them.
//!
//! ```text
//!  Start ──▶ Process ── pump ──▶ subscriber (the stream of Start)
//!               ▲         ├────▶ subscriber (a stream of Connect)
//!   SendInput ──┘         └────▶ no subscriber: output is read and dropped
//! ```
//!
//! A process belongs to the sandbox, not to the call that started it. A client that goes away takes its subscription along
//! and nothing else.
//!
//! **Back-pressure.** Output is read in chunks, one at a time, and handed to every subscriber. A subscriber has room for a few
//! chunks. When one is full, the pump waits for it and the process waits for the pump, because its pipe fills up: nothing is
//! lost and nothing piles up. A subscriber that takes nothing for 30 seconds loses its stream, with an error that says so, and
//! the process continues. So a client that stopped reading delays a process by half a minute, and costs a few hundred KiB.

mod close_stdin;
mod connect;
mod environment;
mod input;
mod list;
mod pump;
mod send_input;
mod send_signal;
mod start;
mod stream_input;
mod subscribers;
mod table;
mod update;

use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use forkd_envd::process as messages;

pub use table::Processes;

use crate::agent::Agent;

pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route(messages::START, post(start::start))
        .route(messages::CONNECT, post(connect::connect))
        .route(messages::LIST, post(list::list))
        .route(messages::SEND_INPUT, post(send_input::send_input))
        .route(messages::STREAM_INPUT, post(stream_input::stream_input))
        .route(messages::CLOSE_STDIN, post(close_stdin::close_stdin))
        .route(messages::SEND_SIGNAL, post(send_signal::send_signal))
        .route(messages::UPDATE, post(update::update))
}
