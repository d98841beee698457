//! What a name means.

use axum::Extension;
use axum::extract::State;
use forkd_api::error::ErrorBody;
use forkd_api::named::Named;
use forkd_engine::Source;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::routes::snapshots::describe;
use crate::views;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(resolve))
}

/// Looks up a name: the snapshot with this name, or else the sandbox with this id. `source` of a request for sandboxes means the
/// same.
#[utoipa::path(
    get,
    path = "/v1/names/{name}",
    tag = "system",
    operation_id = "resolve_name",
    params(("name" = String, Path)),
    responses(
        (status = 200, description = "The snapshot or the sandbox", body = Named),
        (status = 404, description = "No snapshot and no sandbox has this name", body = ErrorBody),
    )
)]
async fn resolve(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Answer<Json<Named>> {
    Ok(Json(match app.named(&caller, &name)? {
        Source::Snapshot(snapshot) => {
            Named::Snapshot(Box::new(describe(&app, &caller, snapshot.view()).await?))
        }
        Source::Sandbox(sandbox) => Named::Sandbox(Box::new(views::sandbox(&sandbox.view()))),
    }))
}
