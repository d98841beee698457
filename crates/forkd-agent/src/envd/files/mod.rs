//! `/files`: the contents of files, up and down.
//!
//! Bodies are never whole in memory: a chunk at a time goes between the connection and the disk, and the disk is waited for
//! off the thread that serves. A slow client holds a buffer and no thread.

mod access;
mod body;
mod compose;
mod download;
mod multipart;
mod range;
mod shared_body;
mod sink;
mod upload;

pub use shared_body::SharedBody;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use serde::{Deserialize, Serialize};

use super::paths;
use crate::agent::Agent;

/// Moved between a connection and a disk at once.
const CHUNK: usize = 128 << 10;

pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route("/files", get(download::download).post(upload::upload))
        .route("/files/compose", post(compose::compose))
}

/// The query of both directions.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct FileQuery {
    #[serde(default)]
    pub path: Option<String>,
    #[serde(default)]
    pub username: Option<String>,
    #[serde(default)]
    pub signature: Option<String>,
    #[serde(default)]
    pub signature_expiration: Option<u64>,
    /// forkd's own: the file appears, or is replaced, when all of it has come, and not before.
    #[serde(default)]
    pub whole: bool,
}

/// What an upload answers about each file.
#[derive(Debug, Serialize)]
pub struct Written {
    pub path: String,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl Written {
    pub fn new(path: &Path, metadata: BTreeMap<String, String>) -> Self {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Self { path: paths::text(path), name, kind: "file", metadata }
    }
}
