//! A client of the daemon's REST API.
//!
//! ```text
//!   Client ── typed methods, one file a resource ──▶ exchange.rs ──▶ connect.rs ──▶ Unix socket, TCP, TLS, the same process
//!                                                       │
//!                    lines.rs (answers that are streams)┤
//!                    process.rs (a WebSocket to a program)
//!                    tunnel.rs (a connection to a port of a guest)
//! ```
//!
//! What the daemon answers is bounded and checked as if it came from anybody: an address may be wrong, and what guests say
//! passes through. A connection is kept and used again when its answer was read to its end.

mod address;
mod body;
mod connect;
mod error;
mod exchange;
mod files;
mod images;
mod kernels;
mod library;
mod lines;
mod process;
mod run;
mod sandboxes;
mod secret;
mod snapshots;
mod system;
#[cfg(test)]
mod tests;
mod tunnel;

pub use address::{Address, AddressError};
pub use body::Upload;
pub use connect::Stream;
pub use error::{ClientError, Refusal};
pub use exchange::{Client, Streamed};
pub use files::Download;
pub use lines::Lines;
pub use process::{Following, Input, Output};
pub use secret::Secret;
