//! Images from registries, and from Debian's packages.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use forkd_api::error::ErrorBody;
use forkd_api::library::{DebianImage, Image, LibraryProgress, PullImage};
use forkd_image::archive::Limits;
use forkd_image::debian::{self, Debian};
use forkd_image::images::Name;
use forkd_image::registry::{self, Credentials, Pull};

use super::MAX_MIB;
use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::Json;
use crate::jobs::{self, Made, Place};
use crate::routes::checks::{malformed, within};
use crate::routes::responses::LibraryErrors;

pub(super) fn name(text: Option<String>) -> Answer<Option<Name>> {
    text.map(|text| text.parse().map_err(|error| malformed(format!("{error}")))).transpose()
}

pub(super) fn size(mib: Option<u64>) -> Answer<Option<u64>> {
    mib.map(|mib| within("size_mib", mib, 1..=MAX_MIB)).transpose()
}

/// Pulls an image from a registry.
///
/// Needs the scope admin. With `Accept: application/x-ndjson`, the response is a stream of LibraryProgress with status 200, whose
/// last line is the image or the error. The pull is cancelled and leaves nothing behind when the client disconnects; with an
/// idempotency key and without a stream, it continues.
#[utoipa::path(
    post,
    path = "/v1/images/pull",
    tag = "images",
    operation_id = "pull_image",
    params(("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer")),
    request_body = PullImage,
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The image", body = Image),
        LibraryErrors,
        (status = 502, description = "The registry has no usable image", body = ErrorBody),
    )
)]
pub(super) async fn pull(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(wanted): Json<PullImage>,
) -> Answer<Response> {
    let PullImage { reference, name: wanted_name, size_mib, credentials } = wanted;
    let pull = Pull {
        reference,
        name: name(wanted_name)?,
        min_mib: size(size_mib)?,
        limits: Limits::default(),
        credentials: credentials.map(|it| Credentials { username: it.username, password: it.password }),
    };
    let place = Place::take(&app).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        shared.admit_image()?;
        let image = shared
            .make_image(&caller.project, || Ok(registry::pull(&shared.library.images, &pull, progress)?))?;
        Ok(Made::Image(Box::new(shared.shown_image(&caller, &image))))
    })
    .await
}

/// Makes a Debian image from Debian packages.
///
/// Needs the scope admin. Streams and idempotency work as for a pull.
#[utoipa::path(
    post,
    path = "/v1/images/debian",
    tag = "images",
    operation_id = "debian_image",
    params(("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer")),
    request_body = DebianImage,
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The image", body = Image),
        LibraryErrors,
        (status = 502, description = "The packages cannot be downloaded", body = ErrorBody),
        (status = 503, description = "The daemon's host has no mmdebstrap", body = ErrorBody),
    )
)]
pub(super) async fn debian(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(wanted): Json<DebianImage>,
) -> Answer<Response> {
    let DebianImage { suite, include, mirror, name: wanted_name, size_mib } = wanted;
    let debian = Debian { suite, include, mirror, name: name(wanted_name)?, min_mib: size(size_mib)? };
    let place = Place::take(&app).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        shared.admit_image()?;
        let image = shared
            .make_image(&caller.project, || Ok(debian::debian(&shared.library.images, &debian, progress)?))?;
        Ok(Made::Image(Box::new(shared.shown_image(&caller, &image))))
    })
    .await
}
