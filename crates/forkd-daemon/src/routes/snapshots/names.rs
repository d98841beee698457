//! Further names of snapshots.

use axum::Extension;
use axum::extract::State;
use forkd_api::error::ErrorBody;
use forkd_api::snapshot::{NameSnapshot, Snapshot};
use forkd_engine::EngineError;
use forkd_store::Tag;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path, Query};
use crate::routes::snapshots::describe;

/// Gives a snapshot another name, which can be used instead of its tag.
#[utoipa::path(
    put,
    path = "/v1/snapshots/{tag}/names/{name}",
    tag = "snapshots",
    operation_id = "add_snapshot_name",
    params(("tag" = String, Path), ("name" = String, Path), NameSnapshot),
    responses(
        (status = 200, description = "The snapshot", body = Snapshot),
        (status = 400, description = "Invalid name: it must have the form of a tag", body = ErrorBody),
        (status = 403, description = "The snapshot is public, but belongs to another project", body = ErrorBody),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
        (status = 409, description = "The name is in use", body = ErrorBody),
        (status = 429, description = "The snapshot has too many names", body = ErrorBody),
    )
)]
pub(super) async fn add(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((tag, name)): Path<(String, String)>,
    Query(wanted): Query<NameSnapshot>,
) -> Answer<Json<Snapshot>> {
    let snapshot = app.own_snapshot(&caller, &tag)?;
    let name: Tag = name.parse().map_err(EngineError::Tag)?;
    app.add_name(&caller, &snapshot, name, wanted.force).await?;
    Ok(Json(describe(&app, &caller, snapshot.view()).await?))
}

/// Removes a name of a snapshot, but not the snapshot.
#[utoipa::path(
    delete,
    path = "/v1/snapshots/{tag}/names/{name}",
    tag = "snapshots",
    operation_id = "remove_snapshot_name",
    params(("tag" = String, Path), ("name" = String, Path)),
    responses(
        (status = 200, description = "The snapshot", body = Snapshot),
        (status = 400, description = "Invalid name: it must have the form of a tag", body = ErrorBody),
        (status = 403, description = "The snapshot is public, but belongs to another project", body = ErrorBody),
        (status = 404, description = "No snapshot has this tag, or it does not have the name", body = ErrorBody),
    )
)]
pub(super) async fn remove(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path((tag, name)): Path<(String, String)>,
) -> Answer<Json<Snapshot>> {
    let snapshot = app.own_snapshot(&caller, &tag)?;
    let name: Tag = name.parse().map_err(EngineError::Tag)?;
    app.engine.remove_name(&snapshot.tag(), name).await?;
    Ok(Json(describe(&app, &caller, snapshot.view()).await?))
}
