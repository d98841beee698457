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
