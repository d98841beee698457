//! Kernels. Who may read may list them; everything else needs an admin. No path of the host is taken from a caller: a kernel is
//! the host's own, its distribution's, or sent.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::middleware::from_fn;
use axum::response::Response;
use forkd_api::error::ErrorBody;
use forkd_api::library::{
    AddKernel, Archive, ChooseKernel, ImportKernel, Kernel, KernelList, KernelSource, LibraryProgress,
    RemoveKernel,
};
use forkd_api::token::Scope;
use forkd_image::kernels::{self, KernelStoreError, StoredKernel};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::images::look;
use crate::app::{App, Shared};
use crate::error::Answer;
use crate::extract::{Json, Path, Query, Upload};
use crate::jobs::{self, Made, Place};
use crate::library_view::kernel as view;
use crate::routes::checks::malformed;
use crate::routes::responses::LibraryErrors;
use crate::{auth, idempotency, upload};

pub(super) fn routes() -> OpenApiRouter<Shared> {
    let admin = || from_fn(auth::require(Scope::Admin));
    let repeatable = OpenApiRouter::new()
        .routes(routes!(add))
        .route_layer(from_fn(idempotency::once))
        .route_layer(admin());
    let changing = OpenApiRouter::new()
        .routes(routes!(import))
        .routes(routes!(choose))
        .routes(routes!(remove))
        .route_layer(admin());
    OpenApiRouter::new().routes(routes!(list)).merge(repeatable).merge(changing)
}

/// The kernels, by name.
#[utoipa::path(
    get,
    path = "/v1/kernels",
    tag = "kernels",
    operation_id = "list_kernels",
    responses((status = 200, description = "All of them", body = KernelList))
)]
async fn list(State(app): State<Shared>) -> Answer<Json<KernelList>> {
    look(&app, |app| Ok(Json(KernelList { kernels: app.library.kernels.list()?.iter().map(view).collect() })))
        .await
}

/// Adds a kernel that the daemon's host can get: its distribution's package, or its own. The first one becomes the default.
///
/// Needs the scope admin. With `application/x-ndjson` among what is accepted, the answer is a stream of LibraryProgress with
/// status 200, whose last line is the kernel or the error.
#[utoipa::path(
    post,
    path = "/v1/kernels",
    tag = "kernels",
    operation_id = "add_kernel",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer")),
    request_body = AddKernel,
    responses(
        (status = 200, description = "Lines of JSON, if asked for", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The kernel", body = Kernel),
        LibraryErrors,
        (status = 400, description = "The request makes no sense, or the kernel cannot be used", body = ErrorBody),
        (status = 404, description = "The host has no such kernel", body = ErrorBody),
        (status = 502, description = "The package cannot be had", body = ErrorBody),
    )
)]
async fn add(
    State(app): State<Shared>,
    headers: HeaderMap,
    Json(wanted): Json<AddKernel>,
) -> Answer<Response> {
    let source = match (wanted.source, wanted.version) {
        (KernelSource::Package, None) => kernels::KernelSource::Distribution,
        (KernelSource::Package, Some(_)) => {
            return Err(malformed("version is for the host's own kernels (\"source\": \"host\")"));
        }
        (KernelSource::Host, version) => kernels::KernelSource::Host { root: "/".into(), version },
    };
    let place = Place::take(&app).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        shared.admit_image()?;
        kept(&shared, shared.library.kernels.add(&source, progress)?, wanted.default)
    })
    .await
}

/// Adds a kernel that is sent.
///
/// Needs the scope admin. The body is a tar archive, compressed or not, of files and directories only: a file `kernel` (ELF or
/// bzImage) and, unless everything is built in, the directory `modules` of that kernel; or `boot/vmlinuz-VERSION` and
/// `lib/modules/VERSION`, as packages have them. The answer may be a stream as that of `POST /v1/kernels`.
#[utoipa::path(
    post,
    path = "/v1/kernels/import",
    tag = "kernels",
    operation_id = "import_kernel",
    params(ImportKernel),
    request_body(content = Archive, content_type = "application/x-tar", description = "The kernel and its modules"),
    responses(
        (status = 200, description = "Lines of JSON, if asked for", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The kernel", body = Kernel),
        LibraryErrors,
        (status = 400, description = "The archive is refused, or has no kernel that can be used", body = ErrorBody),
    )
)]
async fn import(
    State(app): State<Shared>,
    headers: HeaderMap,
    Query(wanted): Query<ImportKernel>,
    Upload(body): Upload,
) -> Answer<Response> {
    let place = Place::take(&app).await?;
    let archive = upload::to_file(&app, body, app.library.directory(), app.limits.kernel_bytes).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        shared.admit_image()?;
        kept(&shared, shared.library.kernels.add_archive(archive, progress)?, wanted.default)
    })
    .await
}

fn kept(app: &App, kernel: StoredKernel, default: bool) -> Answer<Made> {
    let kernel = match default {
        true => app.library.kernels.set_default(&kernel.metadata.id)?,
        false => kernel,
    };
    Ok(Made::Kernel(Box::new(view(&kernel))))
}

/// Chooses the kernel that is used when none is named.
///
/// Needs the scope admin.
#[utoipa::path(
    put,
    path = "/v1/kernels/default",
    tag = "kernels",
    operation_id = "choose_kernel",
    request_body = ChooseKernel,
    responses(
        (status = 200, description = "The kernel", body = Kernel),
        (status = 400, description = "It means more than one", body = ErrorBody),
        (status = 404, description = "There is none of this name", body = ErrorBody),
    )
)]
async fn choose(State(app): State<Shared>, Json(wanted): Json<ChooseKernel>) -> Answer<Json<Kernel>> {
    look(&app, move |app| Ok(Json(view(&app.library.kernels.set_default(&wanted.kernel)?)))).await
}

/// Removes a kernel. Snapshots do not need it any more.
///
/// Needs the scope admin.
#[utoipa::path(
    delete,
    path = "/v1/kernels/{kernel}",
    tag = "kernels",
    operation_id = "remove_kernel",
    params(("kernel" = String, Path, description = "A name, or its beginning"), RemoveKernel),
    responses(
        (status = 200, description = "The kernel that is gone", body = Kernel),
        (status = 400, description = "It means more than one", body = ErrorBody),
        (status = 404, description = "There is none of this name", body = ErrorBody),
        (status = 409, description = "It is the default, or in the shared library", body = ErrorBody),
    )
)]
async fn remove(
    State(app): State<Shared>,
    Path(kernel): Path<String>,
    Query(wanted): Query<RemoveKernel>,
) -> Answer<Json<Kernel>> {
    look(&app, move |app| {
        let removed: Result<StoredKernel, KernelStoreError> =
            app.library.kernels.remove(&kernel, wanted.force);
        Ok(Json(view(&removed?)))
    })
    .await
}
