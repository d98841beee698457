//! Images. Who may read may list them. Everything else needs an admin: the library is everybody's, its names decide what new
//! snapshots are made of, and pulls go out with the daemon's network and credentials.
//!
//! An image is named in a path by a name, an id or its beginning, with everything that a path takes for something else encoded:
//! `registry.example%2Fteam%2Fapp:v1`. A name that is also a verb here needs its tag: `build:latest`.

pub(crate) mod build;
mod import;
mod make;

use axum::Extension;
use axum::extract::State;
use axum::middleware::from_fn;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::hint::HintCode;
use forkd_api::library::{Image, ImageList, PruneImages, PrunedImages, Publish, RemovedImage};
use forkd_api::token::Scope;
use forkd_image::builds::BuildCache;
use forkd_image::images::{ImageStore, Removal};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::engine_error::shortened;
use crate::error::{Answer, ApiError};
use crate::extract::{Json, Path};
use crate::{auth, idempotency};

/// A TiB.
const MAX_MIB: u64 = 1 << 20;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    let admin = || from_fn(auth::require(Scope::Admin));
    let repeatable = OpenApiRouter::new()
        .routes(routes!(make::pull))
        .routes(routes!(make::debian))
        .route_layer(from_fn(idempotency::once))
        .route_layer(admin());
    let changing = OpenApiRouter::new()
        .routes(routes!(import::import))
        .routes(routes!(build::build))
        .routes(routes!(prune))
        .routes(routes!(remove))
        .routes(routes!(publish))
        .route_layer(admin());
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get)).merge(repeatable).merge(changing)
}

/// Asks the library, which is on disk.
pub async fn look<T: Send + 'static>(
    app: &Shared,
    work: impl FnOnce(&App) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let app = app.clone();
    tokio::task::spawn_blocking(move || work(&app)).await.map_err(|error| ApiError::internal(&error))?
}

/// Lists the images: those with names first, by name.
#[utoipa::path(
    get,
    path = "/v1/images",
    tag = "images",
    operation_id = "list_images",
    responses((status = 200, description = "Those of the caller's project, and all public ones", body = ImageList))
)]
async fn list(State(app): State<Shared>, Extension(caller): Extension<Caller>) -> Answer<Json<ImageList>> {
    look(&app, move |app| {
        let images = app.images(&caller)?;
        let images = images.iter().map(|image| app.shown_summary(&caller, image)).collect();
        Ok(Json(ImageList { images }))
    })
    .await
}

/// Returns an image.
#[utoipa::path(
    get,
    path = "/v1/images/{image}",
    tag = "images",
    operation_id = "get_image",
    params(("image" = String, Path, description = "A URL-encoded name (`team%2Fapp:v1`), an id, or a unique prefix of an id")),
    responses(
        (status = 200, description = "The image", body = Image),
        (status = 400, description = "The prefix matches more than one id", body = ErrorBody),
        (status = 404, description = "No image has this name or id", body = ErrorBody),
    )
)]
async fn get(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(image): Path<String>,
) -> Answer<Json<Image>> {
    look(&app, move |app| Ok(Json(app.shown_image(&caller, &app.image(&caller, &image)?)))).await
}

/// Makes an image public, so that every project can make snapshots of it, or private.
///
/// Needs the scope admin.
#[utoipa::path(
    put,
    path = "/v1/images/{image}/public",
    tag = "images",
    operation_id = "publish_image",
    params(("image" = String, Path, description = "A URL-encoded name (`team%2Fapp:v1`), an id, or a unique prefix of an id")),
    request_body = Publish,
    responses(
        (status = 200, description = "The image", body = Image),
        (status = 400, description = "The prefix matches more than one id", body = ErrorBody),
        (status = 404, description = "No image has this name or id", body = ErrorBody),
    )
)]
async fn publish(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(image): Path<String>,
    Json(wanted): Json<Publish>,
) -> Answer<Json<Image>> {
    look(&app, move |app| {
        let image = app.image(&caller, &image)?;
        app.sharing.set_image(image.id(), wanted.public)?;
        Ok(Json(app.shown_image(&caller, &image)))
    })
    .await
}

/// Removes an image name, and with its last name the image. Given an id, removes the image and all its names.
///
/// Needs the scope admin.
#[utoipa::path(
    delete,
    path = "/v1/images/{image}",
    tag = "images",
    operation_id = "remove_image",
    params(("image" = String, Path, description = "A URL-encoded name (`team%2Fapp:v1`), an id, or a unique prefix of an id")),
    responses(
        (status = 200, description = "The removed objects", body = RemovedImage),
        (status = 400, description = "The prefix matches more than one id", body = ErrorBody),
        (status = 404, description = "No image has this name or id", body = ErrorBody),
        (status = 409, description = "The image is in the shared library, or used by the snapshots and sandboxes that the error names", body = ErrorBody),
    )
)]
async fn remove(State(app): State<Shared>, Path(image): Path<String>) -> Answer<Json<RemovedImage>> {
    look(&app, move |app| {
        let images = &app.library.images;
        let Removal { image: found, names, whole } = images.removal(&image)?;
        let users = app.engine.users_of(found.id());
        if whole && !users.is_empty() {
            let text = format!("image {image} is needed by {}", users.join(", "));
            return Err(ApiError::new(ErrorCode::HasDependents, shortened(text)).hint(HintCode::RemoveUsers));
        }
        let freed_bytes = images.remove(&image)?;
        if whole {
            app.sharing.forget_image(found.id())?;
        }
        let names = names.iter().map(ToString::to_string).collect();
        Ok(Json(RemovedImage { id: found.id().to_string(), names, removed: whole, freed_bytes }))
    })
    .await
}

/// Removes cached build steps and, if requested, images without a name.
///
/// Needs the scope admin.
#[utoipa::path(
    post,
    path = "/v1/images/prune",
    tag = "images",
    operation_id = "prune_images",
    request_body = PruneImages,
    responses(
        (status = 200, description = "The removed objects", body = PrunedImages),
        (status = 409, description = "A build is running", body = ErrorBody),
    )
)]
async fn prune(State(app): State<Shared>, Json(wanted): Json<PruneImages>) -> Answer<Json<PrunedImages>> {
    look(&app, move |app| {
        let images = &app.library.images;
        // First, because it is refused while a build is running, which may stand on an image without a name.
        let kept = wanted.keep_mib.saturating_mul(1 << 20);
        let pruned = BuildCache::new(&app.library.directory()).prune(kept, images)?;
        let mut answer = PrunedImages { steps: pruned.steps as u64, images: 0, freed_bytes: pruned.freed };
        if wanted.images {
            remove_nameless(app, images, &mut answer)?;
        }
        Ok(Json(answer))
    })
    .await
}

fn remove_nameless(app: &App, images: &ImageStore, answer: &mut PrunedImages) -> Answer<()> {
    for image in images.list()?.iter().filter(|image| image.names.is_empty() && !image.shared) {
        if app.engine.users_of(image.id()).is_empty() {
            answer.freed_bytes += images.remove(&image.id().hex())?;
            app.sharing.forget_image(image.id())?;
            answer.images += 1;
        }
    }
    Ok(())
}
