//! Snapshots.

pub(crate) mod create;

use axum::extract::State;
use axum::middleware::from_fn;
use forkd_api::error::ErrorBody;
use forkd_api::snapshot::{RemoveSnapshot, RemovedSnapshots, Snapshot, SnapshotList};
use forkd_engine::engine::SnapshotView;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, Shared};
use crate::error::Answer;
use crate::extract::{Json, Path, Query};
use crate::{idempotency, views};

pub(super) fn routes() -> OpenApiRouter<Shared> {
    let creating =
        OpenApiRouter::new().routes(routes!(create::create)).route_layer(from_fn(idempotency::once));
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, remove)).merge(creating)
}

/// A snapshot as the API says it, with what only the others and the disk know.
pub(super) async fn describe(app: &App, view: SnapshotView) -> Answer<Snapshot> {
    let sizes = app.engine.stored_sizes(vec![view.clone()]).await?;
    let size = sizes.into_iter().next().unwrap_or_default();
    Ok(views::snapshot(&view, size, &app.engine.snapshots()))
}

/// The snapshots, by tag.
#[utoipa::path(
    get,
    path = "/v1/snapshots",
    tag = "snapshots",
    operation_id = "list_snapshots",
    responses((status = 200, description = "All of them", body = SnapshotList))
)]
async fn list(State(app): State<Shared>) -> Answer<Json<SnapshotList>> {
    let all = app.engine.snapshots();
    let sizes = app.engine.stored_sizes(all.clone()).await?;
    let snapshots = all.iter().zip(sizes).map(|(view, size)| views::snapshot(view, size, &all)).collect();
    Ok(Json(SnapshotList { snapshots }))
}

/// A snapshot.
#[utoipa::path(
    get,
    path = "/v1/snapshots/{tag}",
    tag = "snapshots",
    operation_id = "get_snapshot",
    params(("tag" = String, Path)),
    responses(
        (status = 200, description = "The snapshot", body = Snapshot),
        (status = 404, description = "There is none with this tag", body = ErrorBody),
    )
)]
async fn get(State(app): State<Shared>, Path(tag): Path<String>) -> Answer<Json<Snapshot>> {
    let view = app.engine.snapshot(&tag)?.view();
    Ok(Json(describe(&app, view).await?))
}

/// Removes a snapshot. Sandboxes that were forked from it go on.
#[utoipa::path(
    delete,
    path = "/v1/snapshots/{tag}",
    tag = "snapshots",
    operation_id = "remove_snapshot",
    params(("tag" = String, Path), RemoveSnapshot),
    responses(
        (status = 200, description = "It is gone, with those that were removed with it", body = RemovedSnapshots),
        (status = 404, description = "There is none with this tag", body = ErrorBody),
        (status = 409, description = "Others are changes of it; the error names them", body = ErrorBody),
    )
)]
async fn remove(
    State(app): State<Shared>,
    Path(tag): Path<String>,
    Query(wanted): Query<RemoveSnapshot>,
) -> Answer<Json<RemovedSnapshots>> {
    let removed = app.engine.remove_snapshot(&tag, wanted.cascade).await?;
    Ok(Json(RemovedSnapshots { removed: removed.iter().map(ToString::to_string).collect() }))
}
