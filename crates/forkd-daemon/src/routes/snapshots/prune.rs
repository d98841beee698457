//! Prune: snapshots that nobody needs.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::snapshot::{BASE_PREFIX, PruneSnapshots, PrunedSnapshot, PrunedSnapshots, UNNAMED_PREFIX};
use forkd_engine::{Fate, Prunable, Prune, SnapshotView};

use crate::app::{App, Shared};
use crate::auth::{Caller, Project};
use crate::error::{Answer, ApiError};
use crate::extract::Json;

/// Removes snapshots that nobody needs, those that were not forked for the longest time first, and children before their parents.
#[utoipa::path(
    post,
    path = "/v1/snapshots/prune",
    tag = "snapshots",
    operation_id = "prune_snapshots",
    request_body = PruneSnapshots,
    responses(
        (status = 200, description = "What is gone, or would go", body = PrunedSnapshots),
        (status = 400, description = "Nothing limits which named ones go", body = ErrorBody),
    )
)]
pub(super) async fn prune(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<PruneSnapshots>,
) -> Answer<Json<PrunedSnapshots>> {
    if wanted.named && wanted.unused_seconds == 0 && wanted.keep_mib == 0 {
        return Err(ApiError::new(
            ErrorCode::Malformed,
            "named: all snapshots would go; say with unused_seconds or keep_mib which stay",
        ));
    }
    let project: Option<Project> = match &wanted.project {
        Some(name) => Some(
            name.parse().map_err(|error| ApiError::new(ErrorCode::Malformed, format!("project: {error}")))?,
        ),
        None => None,
    };
    let limits = Prune {
        unused_for: Duration::from_secs(wanted.unused_seconds),
        keep_bytes: wanted.keep_mib.saturating_mul(1 << 20),
    };
    let fate = |view: &SnapshotView| fate(&app, &caller, project.as_ref(), wanted.named, view);
    let mut gone = app.engine.prunable(limits, fate).await?;
    if !wanted.dry_run {
        gone = app.engine.prune(gone).await?;
    }
    let freed_bytes = gone.iter().map(|one| one.freed_bytes).sum();
    Ok(Json(PrunedSnapshots { snapshots: gone.iter().map(show).collect(), freed_bytes }))
}

fn fate(app: &App, caller: &Caller, project: Option<&Project>, named: bool, view: &SnapshotView) -> Fate {
    let record = &view.record;
    if !caller.owns(&record.project) || project.is_some_and(|project| *project != record.project) {
        return Fate::OfOthers;
    }
    let is_unnamed =
        [UNNAMED_PREFIX, BASE_PREFIX].iter().any(|prefix| record.tag.as_str().starts_with(prefix))
            && app.engine.names_of(&record.tag).is_empty();
    match (named || is_unnamed) && !app.sharing.is_public(record) {
        true => Fate::MayGo,
        false => Fate::Stays,
    }
}

fn show(one: &Prunable) -> PrunedSnapshot {
    let used_at_unix = one.used_unix_ms / 1000;
    PrunedSnapshot { tag: one.tag.to_string(), used_at_unix, freed_bytes: one.freed_bytes }
}
