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

/// Lists the kernels, by name.
#[utoipa::path(
    get,
    path = "/v1/kernels",
    tag = "kernels",
    operation_id = "list_kernels",
    responses((status = 200, description = "The kernels", body = KernelList))
)]
async fn list(State(app): State<Shared>) -> Answer<Json<KernelList>> {
    look(&app, |app| Ok(Json(KernelList { kernels: app.library.kernels.list()?.iter().map(view).collect() })))
        .await
}

/// Adds a kernel of the daemon's host: the package of its distribution, or its own kernel. The first kernel becomes the default.
///
/// Needs the scope admin. With `Accept: application/x-ndjson`, the response is a stream of LibraryProgress with status 200, whose
/// last line is the kernel or the error.
#[utoipa::path(
    post,
    path = "/v1/kernels",
    tag = "kernels",
    operation_id = "add_kernel",
    params(("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer")),
    request_body = AddKernel,
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The kernel", body = Kernel),
        LibraryErrors,
        (status = 400, description = "Invalid request, or the kernel is not usable", body = ErrorBody),
        (status = 404, description = "The host does not have this kernel", body = ErrorBody),
        (status = 502, description = "The package cannot be downloaded", body = ErrorBody),
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
            return Err(malformed("version can only be given with \"source\": \"host\""));
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

/// Uploads a kernel.
///
/// Needs the scope admin. The body is a tar archive, compressed or not, of files and directories only: either a file `kernel` (ELF
/// or bzImage) and, unless all drivers are built in, the directory `modules` of that kernel; or `boot/vmlinuz-VERSION` and
/// `lib/modules/VERSION`, as in distribution packages. The response can be a stream as for `POST /v1/kernels`.
#[utoipa::path(
    post,
    path = "/v1/kernels/import",
    tag = "kernels",
    operation_id = "import_kernel",
    params(ImportKernel),
    request_body(content = Archive, content_type = "application/x-tar", description = "The kernel and its modules"),
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The kernel", body = Kernel),
        LibraryErrors,
        (status = 400, description = "The archive is refused, or has no usable kernel", body = ErrorBody),
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

/// Chooses the default kernel.
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
        (status = 400, description = "The prefix matches more than one kernel", body = ErrorBody),
        (status = 404, description = "No kernel has this name", body = ErrorBody),
    )
)]
async fn choose(State(app): State<Shared>, Json(wanted): Json<ChooseKernel>) -> Answer<Json<Kernel>> {
    look(&app, move |app| Ok(Json(view(&app.library.kernels.set_default(&wanted.kernel)?)))).await
}

/// Removes a kernel. Existing snapshots do not need it.
///
/// Needs the scope admin.
#[utoipa::path(
    delete,
    path = "/v1/kernels/{kernel}",
    tag = "kernels",
    operation_id = "remove_kernel",
    params(("kernel" = String, Path, description = "A name or a unique prefix"), RemoveKernel),
    responses(
        (status = 200, description = "The removed kernel", body = Kernel),
        (status = 400, description = "The prefix matches more than one kernel", body = ErrorBody),
        (status = 404, description = "No kernel has this name", body = ErrorBody),
        (status = 409, description = "The kernel is the default, or in the shared library", body = ErrorBody),
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
