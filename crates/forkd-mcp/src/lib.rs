//! Sandboxes as tools of a model: a server of the Model Context Protocol (MCP), over stdio and over HTTP.
//!
//! ```text
//!   stdio: forkd mcp ────────────┐
//!                                ├──▶ service.rs ──▶ tools/, reference.rs ──▶ forkd-client ──▶ /v1 of a daemon
//!   HTTP: /mcp of the daemon ────┘        │                 │
//!                                    outputs.rs          sandboxes.rs
//!                    output that is too long for an answer   the cap on sandboxes, and their time to live
//! ```
//!
//! The service decides nothing about tokens, scopes and projects: it asks the daemon through [`forkd_client::Client`] with the caller's
//! own token, over HTTP too, where the daemon gives it connections to itself. What it adds is its own cap on sandboxes per caller.
//!
//! Every request stands alone: there are no sessions, so that nothing is kept for a client that went away but its sandboxes, which
//! expire, and its outputs, which do as well.

mod answer;
mod call;
mod command;
mod failure;
mod http;
mod outputs;
mod progress;
mod reference;
mod sandboxes;
mod schema;
mod service;
mod stdio;
mod tools;

use futures_util::future::BoxFuture;

pub use failure::Failure;
pub use http::{HttpService, MAX_BODY};
/// What came with a request, such as its HTTP headers.
pub use rmcp::model::Extensions;
pub use service::McpService;
pub use stdio::{StdioError, serve_stdio};

/// The most sandboxes that a caller makes through MCP and that exist at once, unless another number is set.
pub const DEFAULT_MAX_SANDBOXES: u32 = 16;
/// Seconds that a sandbox made through MCP lives after its last use, unless another number is set.
pub const DEFAULT_TTL_SECS: u64 = 30 * 60;

/// How the service behaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub tools: ToolSet,
    /// The snapshot of sandboxes that are made when a call names neither. Without one, it is found out.
    pub snapshot: Option<String>,
    /// The most sandboxes that one caller makes and that exist at once.
    pub max_sandboxes: u32,
    /// Seconds that a sandbox lives after its last use.
    pub ttl_secs: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tools: ToolSet::Tasks,
            snapshot: None,
            max_sandboxes: DEFAULT_MAX_SANDBOXES,
            ttl_secs: DEFAULT_TTL_SECS,
        }
    }
}

/// Which tools are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolSet {
    /// forkd's own: one for each task.
    Tasks,
    /// Those of deeplethe/forkd's MCP server, by its names and arguments.
    Reference,
}

/// Finds the daemon that a request is for.
pub trait FindDaemon: std::fmt::Debug + Send + Sync + 'static {
    /// A client of the daemon, with the token of whoever sent the request.
    fn find<'a>(&'a self, request: &'a Extensions) -> BoxFuture<'a, Result<forkd_client::Client, Failure>>;
}
