//! The routes: one file a resource. Handlers convert, ask, and convert back; they decide nothing.
//!
//! A route of a new resource: a file here with a `routes` function, a line in `all`, the types in `forkd-api`, and the
//! document written anew (`openapi.rs` says how). What a handler may rely on: it has passed the gate (`gate.rs`), so there are
//! a `Caller` with at least the scope that its method needs and a `RequestId` among the extensions; a route that needs more adds
//! [`crate::auth::require`], one that creates something adds [`crate::idempotency::once`] and names the header
//! `Idempotency-Key` among its parameters. It takes its input with the extractors of [`crate::extract`], fails with
//! [`crate::error::ApiError`], and says with [`crate::audit::Sandboxes`] which sandboxes it has made. Errors that it has in
//! common with others are in `responses.rs`.

pub(crate) mod checks;
mod events;
mod files;
pub(crate) mod images;
mod kernels;
mod names;
mod proxy;
mod responses;
pub(crate) mod sandboxes;
pub(crate) mod snapshots;
mod system;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::app::Shared;
use crate::error::ApiError;
use crate::gate::gate;
use crate::{openapi, removals};

/// All routes that are in the document.
fn all() -> OpenApiRouter<Shared> {
    OpenApiRouter::with_openapi(openapi::beginning())
        .merge(system::routes())
        .merge(sandboxes::routes())
        .merge(files::routes())
        .merge(proxy::routes())
        .merge(snapshots::routes())
        .merge(images::routes())
        .merge(kernels::routes())
        .merge(names::routes())
        .merge(events::routes())
}

/// The OpenAPI document.
pub fn document() -> OpenApi {
    openapi::complete(all().into_openapi())
}

/// Everything that the daemon answers.
pub fn router(app: &Shared) -> Router {
    router_with(app, Router::new())
}

/// The same with more routes, behind the same gate.
pub fn router_with(app: &Shared, more: Router<Shared>) -> Router {
    Router::from(all())
        .layer(from_fn(removals::repeat))
        .merge(Arc::clone(&app.protocol).routes(app))
        .merge(more)
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(app.clone(), gate))
        .with_state(app.clone())
}

async fn no_such_path(request: Request) -> impl IntoResponse {
    let text = format!("there is no path {}", crate::audit::short(request.uri().path()));
    ApiError::new(ErrorCode::NotFound, text).hint(HintCode::ReadApi)
}

async fn wrong_method(method: Method) -> impl IntoResponse {
    ApiError::new(ErrorCode::MethodNotAllowed, format!("this path does not have the method {method}"))
        .hint(HintCode::UseMethod)
}

#[cfg(test)]
mod tests {
    use utoipa_axum::routes;

    use super::*;

    #[utoipa::path(get, path = "/things", responses((status = 200)))]
    async fn list() {}

    #[utoipa::path(post, path = "/things", responses((status = 200)))]
    async fn create() {}

    /// Methods of one path may have different layers.
    #[test]
    fn what_creates_can_be_apart() {
        let creating: OpenApiRouter<Shared> =
            OpenApiRouter::new().routes(routes!(create)).route_layer(from_fn(crate::idempotency::once));
        let (_, document) = OpenApiRouter::new().routes(routes!(list)).merge(creating).split_for_parts();
        let item = &document.paths.paths["/things"];
        assert!(item.get.is_some() && item.post.is_some());
    }
}
