//! Images from archives that are sent.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use forkd_api::error::ErrorBody;
use forkd_api::library::{Archive, Image, ImportImage, LibraryProgress};
use forkd_image::archive::Limits;
use forkd_image::import::{Import, import_from};

use super::make::{name, size};
use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Query, Upload};
use crate::jobs::{self, Made, Place};
use crate::routes::responses::LibraryErrors;
use crate::upload;

/// What an image says of where it came from, beside its name.
const FILE: &str = "upload";

/// Imports an image from an archive: a root file system as tar, tar.gz or tar.zst, or an archive of `docker save` or an OCI tool.
///
/// Needs the scope admin. The body is the archive, with any content type. The daemon reads the whole body before it responds; the
/// response can be a stream as for a pull.
#[utoipa::path(
    post,
    path = "/v1/images/import",
    tag = "images",
    operation_id = "import_image",
    params(ImportImage),
    request_body(content = Archive, content_type = "application/octet-stream", description = "The archive"),
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The image", body = Image),
        LibraryErrors,
        (status = 400, description = "Invalid request, or the archive is refused", body = ErrorBody),
    )
)]
pub(super) async fn import(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Query(wanted): Query<ImportImage>,
    Upload(body): Upload,
) -> Answer<Response> {
    let import = Import {
        file: FILE.into(),
        name: name(Some(wanted.name))?,
        min_mib: size(wanted.size_mib)?,
        limits: Limits::default(),
    };
    // Before a large body is sent for nothing.
    app.library.images.check_user()?;
    let place = Place::take(&app).await?;
    let file = upload::to_file(&app, body, app.library.directory(), app.limits.image_bytes).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        shared.admit_image()?;
        let image = shared.make_image(&caller.project, || {
            Ok(import_from(&shared.library.images, &import, file, progress)?)
        })?;
        Ok(Made::Image(Box::new(shared.shown_image(&caller, &image))))
    })
    .await
}
