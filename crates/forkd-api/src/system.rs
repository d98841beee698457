//! The daemon itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    pub ok: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Version {
    /// The daemon's.
    pub version: String,
    /// The API's.
    pub api: String,
    /// Whether its host's CPU is an emulator: everything works, and every time is many times what it would be.
    #[serde(default)]
    pub emulated: bool,
}

/// A record, manifest or directory of the daemon's that it cannot read. It leaves that as it is, with every process and file that
/// may belong to it, and tries again every minute.
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
