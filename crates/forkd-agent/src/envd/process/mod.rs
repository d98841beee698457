//! `process.Process`: starting processes, and talking to them.
//!
//! ```text
//!  Start ──▶ Process ── pump ──▶ subscriber (the stream of Start)
//!               ▲         ├────▶ subscriber (a stream of Connect)
//!   SendInput ──┘         └────▶ nobody: output is read and dropped
//! ```
//!
//! A process belongs to the sandbox, not to the call that started it. A client that goes away takes its subscription along
//! and nothing else.
//!
//! **Back-pressure.** Output is read in chunks, one at a time, and handed to every subscriber. A subscriber has room for a few
//! chunks. When one is full, the pump waits for it and the process waits for the pump, because its pipe fills up: nothing is
//! lost and nothing piles up. A subscriber that takes nothing for 30 seconds loses its stream, with an error that says so, and
//! the process goes on. So a client that stopped reading delays a process by half a minute, and costs a few hundred KiB.

mod close_stdin;
mod connect;
mod environment;
mod input;
mod list;
mod messages;
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

pub use table::Processes;

use crate::agent::Agent;

pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route("/process.Process/Start", post(start::start))
        .route("/process.Process/Connect", post(connect::connect))
        .route("/process.Process/List", post(list::list))
        .route("/process.Process/SendInput", post(send_input::send_input))
        .route("/process.Process/StreamInput", post(stream_input::stream_input))
        .route("/process.Process/CloseStdin", post(close_stdin::close_stdin))
        .route("/process.Process/SendSignal", post(send_signal::send_signal))
        .route("/process.Process/Update", post(update::update))
}
