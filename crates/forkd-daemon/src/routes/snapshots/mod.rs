//! Snapshots.

pub(crate) mod build;
mod compact;
pub(crate) mod create;
mod derive;
mod history;
mod names;
mod prune;
mod travel;
mod trust;
mod verify;

use axum::Extension;
use axum::extract::State;
use axum::middleware::from_fn;
use forkd_api::error::ErrorBody;
use forkd_api::library::Publish;
use forkd_api::snapshot::{RemoveSnapshot, RemovedSnapshots, Snapshot, SnapshotList};
use forkd_api::token::Scope;
use forkd_engine::{Removal, SnapshotView};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path, Query};
use crate::routes::images::look;
use crate::{auth, idempotency, views};

pub(super) fn routes() -> OpenApiRouter<Shared> {
    let creating =
        OpenApiRouter::new().routes(routes!(create::create)).route_layer(from_fn(idempotency::once));
    let building = OpenApiRouter::new().routes(routes!(build::build)).route_layer(from_fn(idempotency::once));
    let publishing =
        OpenApiRouter::new().routes(routes!(publish)).route_layer(from_fn(auth::require(Scope::Admin)));
    let loading = OpenApiRouter::new()
        .routes(routes!(travel::load))
        .routes(routes!(travel::list))
        .route_layer(from_fn(auth::require(Scope::Admin)));
    let trusting = OpenApiRouter::new()
        .routes(routes!(trust::resolve))
        .routes(routes!(trust::add))
        .route_layer(from_fn(auth::require(Scope::Admin)));
    let transferring = OpenApiRouter::new()
        .routes(routes!(travel::pull))
        .routes(routes!(travel::push))
        .route_layer(from_fn(idempotency::once))
        .route_layer(from_fn(auth::require(Scope::Admin)));
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(get, remove))
        .routes(routes!(history::history))
        .routes(routes!(verify::verify))
        .routes(routes!(travel::save))
        .routes(routes!(compact::compact))
        .routes(routes!(prune::prune))
        .routes(routes!(names::add, names::remove))
        .merge(creating)
        .merge(building)
        .merge(publishing)
        .merge(loading)
        .merge(transferring)
        .merge(trusting)
}

/// A snapshot as the API says it, with what only the others and the disk know.
pub(super) async fn describe(app: &App, caller: &Caller, view: SnapshotView) -> Answer<Snapshot> {
    let sizes = app.engine.stored_sizes(vec![view.clone()]).await?;
    let size = sizes.into_iter().next().unwrap_or_default();
    let public = app.sharing.is_public(&view.record);
    let names = app.engine.names_of(&view.record.tag);
    Ok(views::snapshot(&view, &names, public, size, &app.snapshots(caller)))
}

/// Lists the snapshots, by tag.
#[utoipa::path(
    get,
    path = "/v1/snapshots",
    tag = "snapshots",
    operation_id = "list_snapshots",
    responses((status = 200, description = "Those of the caller's project, and all public ones", body = SnapshotList))
)]
async fn list(State(app): State<Shared>, Extension(caller): Extension<Caller>) -> Answer<Json<SnapshotList>> {
    let all = app.snapshots(&caller);
    let sizes = app.engine.stored_sizes(all.clone()).await?;
    let show = |(view, size): (&SnapshotView, _)| {
        let names = app.engine.names_of(&view.record.tag);
        views::snapshot(view, &names, app.sharing.is_public(&view.record), size, &all)
    };
    Ok(Json(SnapshotList { snapshots: all.iter().zip(sizes).map(show).collect() }))
}

/// Returns a snapshot.
#[utoipa::path(
    get,
    path = "/v1/snapshots/{tag}",
    tag = "snapshots",
    operation_id = "get_snapshot",
    params(("tag" = String, Path)),
    responses(
        (status = 200, description = "The snapshot", body = Snapshot),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
    )
)]
async fn get(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
) -> Answer<Json<Snapshot>> {
    let view = app.snapshot(&caller, &tag)?.view();
    Ok(Json(describe(&app, &caller, view).await?))
}

/// Makes a snapshot public, so that every project can fork it, or private.
///
/// Needs the scope admin.
#[utoipa::path(
    put,
    path = "/v1/snapshots/{tag}/public",
    tag = "snapshots",
    operation_id = "publish_snapshot",
    params(("tag" = String, Path)),
    request_body = Publish,
    responses(
        (status = 200, description = "The snapshot", body = Snapshot),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
    )
)]
async fn publish(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
    Json(wanted): Json<Publish>,
) -> Answer<Json<Snapshot>> {
    let view = app.own_snapshot(&caller, &tag)?.view();
    let record = view.record.clone();
    look(&app, move |app| Ok(app.sharing.set_snapshot(&record, wanted.public)?)).await?;
    Ok(Json(describe(&app, &caller, view).await?))
}

/// Removes a snapshot, or one of its other names. Sandboxes forked from it keep running.
#[utoipa::path(
    delete,
    path = "/v1/snapshots/{tag}",
    tag = "snapshots",
    operation_id = "remove_snapshot",
    params(("tag" = String, Path), RemoveSnapshot),
    responses(
        (status = 200, description = "The removed snapshots", body = RemovedSnapshots),
        (status = 403, description = "The snapshot is public, but belongs to another project", body = ErrorBody),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
        (status = 409, description = "Other snapshots are based on it, or it has other names; the error lists them", body = ErrorBody),
    )
)]
async fn remove(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
    Query(wanted): Query<RemoveSnapshot>,
) -> Answer<Json<RemovedSnapshots>> {
    if let Some(name) = app.remove_name(&caller, &tag).await? {
        return Ok(Json(RemovedSnapshots { removed: Vec::new(), names: vec![name.to_string()] }));
    }
    let removal = Removal { cascade: wanted.cascade, all_names: wanted.all_names };
    let removed = app.remove_snapshot(&caller, &tag, removal).await?;
    let removed = removed.iter().map(ToString::to_string).collect();
    Ok(Json(RemovedSnapshots { removed, names: Vec::new() }))
}
