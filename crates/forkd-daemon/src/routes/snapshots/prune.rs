//! Prune: removes unused snapshots.

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

/// Digits of the digests in generated tags.
const BASE_DIGITS: usize = 24;
const RUN_DIGITS: usize = 12;

/// Removes unused snapshots: the least recently forked first, and children before their parents.
#[utoipa::path(
    post,
    path = "/v1/snapshots/prune",
    tag = "snapshots",
    operation_id = "prune_snapshots",
    request_body = PruneSnapshots,
    responses(
        (status = 200, description = "The removed snapshots, or with `dry_run` those that would be removed", body = PrunedSnapshots),
        (status = 400, description = "`named` needs `unused_seconds` or `keep_mib`", body = ErrorBody),
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
            "named would remove all snapshots; limit it with unused_seconds or keep_mib",
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
    match (named || is_unnamed(app, view)) && !app.sharing.is_public(record) {
        true => Fate::MayGo,
        false => Fate::Stays,
    }
}

/// Whether no user has named it: its tag is generated, and it has no other.
fn is_unnamed(app: &App, view: &SnapshotView) -> bool {
    let record = &view.record;
    let tag = record.tag.as_str();
    let is_hex =
        |text: &str, digits: usize| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let came_along = tag.strip_prefix(BASE_PREFIX).and_then(|rest| rest.split('-').next());
    let came_along = came_along.is_some_and(|digest| is_hex(digest, BASE_DIGITS));
    let by_run = tag.strip_prefix(UNNAMED_PREFIX).and_then(|rest| rest.rsplit_once('-'));
    let by_run =
        by_run.is_some_and(|(_, digest)| is_hex(digest, RUN_DIGITS)) && record.branched_from.is_none();
    let by_build = record.build_key.as_ref().is_some_and(|key| tag.contains(&format!("-{}", key.short())));
    (came_along || by_run || by_build) && app.engine.names_of(&record.tag).is_empty()
}

fn show(one: &Prunable) -> PrunedSnapshot {
    let used_at_unix = one.used_unix_ms / 1000;
    PrunedSnapshot { tag: one.tag.to_string(), used_at_unix, freed_bytes: one.freed_bytes }
}
