//! Sandboxes.

pub(crate) mod change;
mod contexts;
pub(crate) mod create;
mod eval;
mod interact;
mod list;
mod look;
mod processes;
mod run;
mod stdin;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use forkd_api::error::ErrorBody;
use forkd_api::sandbox::Sandbox;
use forkd_api::token::Scope;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::{auth, idempotency, views};

pub(super) fn routes() -> OpenApiRouter<Shared> {
    let creating = OpenApiRouter::new()
        .routes(routes!(create::create))
        .routes(routes!(change::branch))
        .route_layer(from_fn(idempotency::once));
    // A GET that does more than look.
    let running = OpenApiRouter::new()
        .routes(routes!(interact::interact))
        .routes(routes!(processes::connect))
        .route_layer(from_fn(auth::require(Scope::Run)));
    OpenApiRouter::new()
        .routes(routes!(list::list))
        .routes(routes!(get, remove))
        .routes(routes!(change::pause))
        .routes(routes!(change::resume))
        .routes(routes!(change::rollback))
        .routes(routes!(change::set_ttl))
        .routes(routes!(change::set_egress))
        .routes(routes!(change::set_bandwidth))
        .routes(routes!(look::console))
        .routes(routes!(look::stats))
        .routes(routes!(run::exec))
        .routes(routes!(eval::eval))
        .routes(routes!(contexts::list, contexts::create))
        .routes(routes!(contexts::remove))
        .routes(routes!(contexts::restart))
        .routes(routes!(contexts::interrupt))
        .routes(routes!(processes::list, processes::start))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::write))
        .merge(creating)
        .merge(running)
}

/// Returns a sandbox.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}",
    tag = "sandboxes",
    operation_id = "get_sandbox",
    params(("id" = String, Path)),
    responses(
        (status = 200, description = "The sandbox", body = Sandbox),
        (status = 404, description = "No sandbox has this id", body = ErrorBody),
    )
)]
async fn get(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<Json<Sandbox>> {
    Ok(Json(views::sandbox(&app.sandbox(&caller, &id)?.view())))
}

/// Ends and removes a sandbox. Its branches remain.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{id}",
    tag = "sandboxes",
    operation_id = "remove_sandbox",
    params(("id" = String, Path)),
    responses(
        (status = 204, description = "Removed"),
        (status = 404, description = "No sandbox has this id", body = ErrorBody),
    )
)]
async fn remove(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    app.sandbox(&caller, &id)?.remove().await?;
    Ok(StatusCode::NO_CONTENT)
}
