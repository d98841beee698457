//! What is spoken with envd, E2B's daemon in a guest, and with the code interpreter beside it.
//!
//! ```text
//!   E2B clients ──▶ daemon (checks tokens and signatures, forwards) ──┐
//!                                                                     ├──▶ agent: port 49983 envd, port 49999 interpreter
//!   forkd's own API ──▶ engine (a client of the same protocols) ──────┘
//!
//!   envd           /process.Process/…, /filesystem.Filesystem/…   Connect with JSON      process, filesystem, connect
//!                  /files, /init, /metrics                        plain HTTP             files, init, metrics
//!   interpreter    /execute                                       lines of JSON          interpreter
//! ```
//!
//! The agent serves these protocols, the engine is a client of them, and the daemon passes them on for E2B's clients. This crate
//! has their messages and encodings, and no I/O. Both sides distrust each other, so every decoder has a limit and none panics.
//!
//! An agent lives as long as the snapshot that it is in, so both sides may be older than the other: a field that is unknown is
//! ignored, and one that is new must be optional.

pub mod caller;
pub mod connect;
pub mod exit;
pub mod files;
pub mod filesystem;
pub mod init;
pub mod interpreter;
pub mod json;
pub mod metrics;
pub mod port;
pub mod process;
pub mod signal;
pub mod signature;

use serde::{Deserialize, Serialize};

pub use exit::Exit;
pub use signal::Signal;

/// The version of envd whose features the agent has: clients ask for it before they use one.
pub const VERSION: &str = "0.6.13";

/// Answered to everybody, without a token.
pub const HEALTH: &str = "/health";

/// A message without fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Empty {}
