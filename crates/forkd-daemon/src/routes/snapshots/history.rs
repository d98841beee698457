//! The history of a snapshot: what it is based on, and what is based on it.

use std::collections::BTreeSet;

use axum::Extension;
use axum::extract::State;
use forkd_api::error::ErrorBody;
use forkd_api::snapshot::{SnapshotHistory, SnapshotHistoryEntry};
use forkd_engine::HistoryEntry;
use forkd_store::Tag;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::views;

/// Returns the chain of a snapshot and its dependents.
#[utoipa::path(
    get,
    path = "/v1/snapshots/{tag}/history",
    tag = "snapshots",
    operation_id = "snapshot_history",
    params(("tag" = String, Path)),
    responses(
        (status = 200, description = "The history, base first; snapshots that the caller may not see are omitted", body = SnapshotHistory),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
    )
)]
pub(super) async fn history(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
) -> Answer<Json<SnapshotHistory>> {
    let tag = app.snapshot(&caller, &tag)?.tag();
    let mut entries = app.engine.history(&tag).await?;
    entries.retain(|entry| app.sees(&caller, &entry.view));
    Ok(Json(SnapshotHistory { tag: tag.to_string(), snapshots: convert(&entries) }))
}

/// Names of snapshots that the caller does not see are left out, too.
fn convert(entries: &[HistoryEntry]) -> Vec<SnapshotHistoryEntry> {
    let seen: BTreeSet<&Tag> = entries.iter().map(|entry| &entry.view.record.tag).collect();
    let show = |entry: &HistoryEntry| {
        let parent = entry.view.record.parent.as_ref().filter(|parent| seen.contains(parent));
        let is_dependent =
            |other: &&HistoryEntry| other.view.record.parent.as_ref() == Some(&entry.view.record.tag);
        let dependents = entries.iter().filter(is_dependent);
        SnapshotHistoryEntry {
            parent: parent.map(ToString::to_string),
            dependents: dependents.map(|other| other.view.record.tag.to_string()).collect(),
            ..views::history_entry(entry)
        }
    };
    entries.iter().map(show).collect()
}
