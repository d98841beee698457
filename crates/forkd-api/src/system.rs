//! The daemon itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub ok: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// The version of the daemon.
    pub version: String,
    /// The version of the API.
    pub api: String,
    /// Whether the host's CPU is emulated: everything works, but many times slower.
    #[serde(default)]
    pub emulated: bool,
    /// The TCP port, if the daemon listens on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpPort>,
}

/// The TCP port that the daemon listens on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TcpPort {
    /// The URL of the port on the daemon's host, such as `http://127.0.0.1:8889`.
    pub url: String,
    /// Whether requests to this port need a token.
    pub needs_token: bool,
}

/// A record, manifest or directory that the daemon cannot read. The daemon keeps it, with every process and file that may belong to
/// it, and retries every minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    pub path: String,
    /// Why it cannot be read.
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemList {
    pub problems: Vec<Problem>,
}
