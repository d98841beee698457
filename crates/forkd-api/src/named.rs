//! What a name means.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandbox::Sandbox;
use crate::snapshot::Snapshot;

/// What a name refers to. A snapshot's tag takes precedence over a sandbox's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Named {
    Snapshot(Box<Snapshot>),
    Sandbox(Box<Sandbox>),
}
