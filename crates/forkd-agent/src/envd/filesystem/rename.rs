//! `Move`: another name for an entry, also in another directory of the same filesystem.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use forkd_envd::filesystem::MoveRequest;

use super::{Caller, owned, stat};
use crate::agent::Agent;
use crate::connect::{or_missing, system_error, unary};
use crate::runtime::blocking;

pub async fn rename(State(agent): State<Arc<Agent>>, request: Request) -> Response {
    let headers = request.headers().clone();
    unary(request, |message: MoveRequest| async move {
        let caller = Caller::new(&agent, &headers).await?;
        let (source, destination) = (caller.resolve(&message.source)?, caller.resolve(&message.destination)?);
        let subject = format!("{} to {}", source.display(), destination.display());
        let target = destination.clone();
        let moved = blocking(move || {
            // Before directories are made for something that is not there.
            source.symlink_metadata()?;
            owned::make_parents(&target, &caller.user)?;
            std::fs::rename(&source, &target)
        });
        let wrong = |error| or_missing("source file not found", system_error(&subject, &error));
        moved.await.and_then(|moved| moved).map_err(wrong)?;
        stat::entry_response(destination).await
    })
    .await
}
