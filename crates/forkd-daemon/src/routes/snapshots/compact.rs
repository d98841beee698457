//! A snapshot becomes one that needs no other.

use axum::Extension;
use axum::extract::State;
use forkd_api::error::ErrorBody;
use forkd_api::snapshot::Snapshot;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::jobs::Place;
use crate::routes::snapshots::describe;

/// Makes a snapshot independent of the snapshots it is based on, by writing all of its memory. Its disk layers do not change.
///
/// Has no effect on a full snapshot. Sandboxes can be forked from it at the same time.
#[utoipa::path(
    post,
    path = "/v1/snapshots/{tag}/compact",
    tag = "snapshots",
    operation_id = "compact_snapshot",
    params(("tag" = String, Path)),
    responses(
        (status = 200, description = "The snapshot, which has no parent", body = Snapshot),
        (status = 403, description = "The snapshot is public, but belongs to another project", body = ErrorBody),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
        (status = 409, description = "Other snapshots are based on it, or its memory is damaged", body = ErrorBody),
        (status = 429, description = "Too many long jobs are running", body = ErrorBody),
        (status = 507, description = "This host has too little disk space", body = ErrorBody),
    )
)]
pub(super) async fn compact(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
) -> Answer<Json<Snapshot>> {
    let snapshot = app.own_snapshot(&caller, &tag)?;
    let place = Place::take(&app).await?;
    app.engine.compact(&snapshot.tag(), place).await?;
    Ok(Json(describe(&app, &caller, snapshot.view()).await?))
}
