//! `Stat`: one entry.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::connect::ConnectError;
use forkd_envd::filesystem::{EntryResponse, PathRequest};

use super::{Caller, entry};
use crate::agent::Agent;
use crate::connect::{or_missing, system_error, unary};
use crate::runtime::blocking;
use crate::users::Users;

pub async fn stat(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let headers = request.headers().clone();
    unary(request, |message: PathRequest| async move {
        let path = Caller::new(&agent, &headers).await?.resolve(&message.path)?;
        entry_response(path).await
    })
    .await
}

/// What several calls answer with.
pub async fn entry_response(path: std::path::PathBuf) -> Result<EntryResponse, ConnectError> {
    let subject = path.display().to_string();
    let found = blocking(move || entry::info(&path, &Users::read())).await.and_then(|found| found);
    let wrong = |error| or_missing("file not found", system_error(&subject, &error));
    found.map(|entry| EntryResponse { entry }).map_err(wrong)
}
