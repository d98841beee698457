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
use forkd_envd::files::{COMPOSE, FILES, Written, WrittenKind};

use super::paths;
use crate::agent::Agent;

/// Moved between a connection and a disk at once.
const CHUNK: usize = 128 << 10;

pub fn routes() -> Router<Arc<Agent>> {
    Router::new()
        .route(FILES, get(download::download).post(upload::upload))
        .route(COMPOSE, post(compose::compose))
}

/// What is answered about a file that was written.
fn written(path: &Path, metadata: BTreeMap<String, String>) -> Written {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Written { path: paths::text(path), name, kind: WrittenKind::File, metadata }
}
