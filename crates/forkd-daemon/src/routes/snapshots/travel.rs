//! Snapshots that leave and arrive: as an archive, or through a registry.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::library::{Archive, Credentials, LibraryProgress};
use forkd_api::snapshot::{LoadSnapshot, PullSnapshot, PushSnapshot, PushedSnapshot, Snapshot};
use forkd_engine::{Destination, Origin};
use forkd_hub::layout::{self, Layout};
use forkd_hub::registry::{PushOptions, Repository};
use forkd_hub::{Artifact, first_variant};
use forkd_image::Progress;
use forkd_source::credentials::{self, own_credentials};
use forkd_store::Tag;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::{Answer, ApiError, chain};
use crate::extract::{Json, Path, Query, Upload};
use crate::jobs::{self, Made, Place};
use crate::routes::checks::malformed;
use crate::routes::responses::LibraryErrors;
use crate::routes::snapshots::{describe, trust};
use crate::{pipe, upload};

const TAR: &str = "application/x-tar";
/// What a snapshot is called in an archive.
const LATEST: &str = "latest";

/// A snapshot as an archive: an OCI image layout in a tar, with all that the snapshot stands on.
///
/// It is waited for until it is on disk. An answer that breaks off is not whole.
#[utoipa::path(
    get,
    path = "/v1/snapshots/{tag}/archive",
    tag = "snapshots",
    operation_id = "save_snapshot",
    params(("tag" = String, Path)),
    responses(
        (status = 200, description = "The archive", body = Vec<u8>, content_type = "application/x-tar"),
        (status = 403, description = "It is public, and another project's", body = ErrorBody),
        (status = 404, description = "There is none with this tag", body = ErrorBody),
        (status = 409, description = "It is of a format that does not travel", body = ErrorBody),
        (status = 429, description = "As much is sent and made as this daemon does at once", body = ErrorBody),
    )
)]
pub(super) async fn save(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
) -> Answer<Response> {
    let snapshot = app.own_snapshot(&caller, &tag)?;
    let place = Place::take(&app).await?;
    snapshot.durable().await?;
    let engine = app.engine.clone();
    let departure = tokio::task::spawn_blocking(move || engine.depart(&snapshot.tag())).await;
    let departure = departure.map_err(|error| ApiError::internal(&error))??;
    let body = pipe::body(move |to| {
        let _place = place;
        let written =
            departure.send(|snapshot| layout::write(to, snapshot, Some(LATEST), &forkd_hub::Silent));
        written.map(drop).map_err(io::Error::other)
    });
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TAR));
    Ok(response)
}

/// Takes in a snapshot from an archive, as GET of one gives it.
///
/// Needs the scope admin. The body is the archive. It is all there before the answer begins; the answer may be a stream as that of
/// a pull of an image.
#[utoipa::path(
    post,
    path = "/v1/snapshots/load",
    tag = "snapshots",
    operation_id = "load_snapshot",
    params(LoadSnapshot),
    request_body(content = Archive, content_type = "application/octet-stream", description = "The archive"),
    responses(
        (status = 200, description = "Lines of JSON, if asked for", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The snapshot", body = Snapshot),
        LibraryErrors,
        (status = 400, description = "The request makes no sense, or the archive is refused", body = ErrorBody),
        (status = 409, description = "The tag is in use", body = ErrorBody),
    )
)]
pub(super) async fn load(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Query(wanted): Query<LoadSnapshot>,
    Upload(body): Upload,
) -> Answer<Response> {
    let tag = parsed(wanted.tag)?;
    let place = Place::take(&app).await?;
    let limit = app.limits.image_bytes;
    let file = upload::to_file(&app, body, app.library.directory(), limit).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        progress.step("reading the archive");
        let moving = Moving::new(progress);
        let spool = shared.library.images.scratch()?;
        let layout = Layout::unpack(file, spool.path(), limit, &moving).map_err(refused)?;
        let artifact = layout.open(&first_variant).map_err(refused)?;
        arrive(&shared, &caller, &artifact, &layout, tag, progress)
    })
    .await
}

/// Fetches a snapshot from a registry, with all that it stands on.
///
/// Needs the scope admin. If the daemon has a policy, the snapshot must be signed as it demands, and if the request has a key, with
/// that one; this is checked before anything of the snapshot is fetched. Streams and idempotency are those of a pull of an image.
#[utoipa::path(
    post,
    path = "/v1/snapshots/pull",
    tag = "snapshots",
    operation_id = "pull_snapshot",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer")),
    request_body = PullSnapshot,
    responses(
        (status = 200, description = "Lines of JSON, if asked for", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The snapshot", body = Snapshot),
        LibraryErrors,
        (status = 403, description = "It is not signed as the policy or the request demands", body = ErrorBody),
        (status = 409, description = "The tag is in use", body = ErrorBody),
        (status = 502, description = "The registry gives no snapshot that can be used", body = ErrorBody),
    )
)]
pub(super) async fn pull(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(wanted): Json<PullSnapshot>,
) -> Answer<Response> {
    let PullSnapshot { reference, tag, credentials, key } = wanted;
    let tag = parsed(tag)?;
    let key = key.map(|key| trust::public_key(&key)).transpose()?;
    let place = Place::take(&app).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        progress.step(&format!("pulling {reference}"));
        let repository = repository(&reference, credentials)?;
        let moving = Moving::new(progress);
        let artifact = trust::open(&shared.snapshot_policy, &repository, key.as_ref(), &moving)?;
        arrive(&shared, &caller, &artifact, &repository, tag, progress)
    })
    .await
}

/// Sends a snapshot to a registry, with all that it stands on. What is there is not sent again.
///
/// Needs the scope admin. A snapshot of a sandbox has the memory of whoever used it, and is pushed only with `yes`. Streams and
/// idempotency are those of a pull of an image.
#[utoipa::path(
    post,
    path = "/v1/snapshots/{tag}/push",
    tag = "snapshots",
    operation_id = "push_snapshot",
    params(
        ("tag" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer"),
    ),
    request_body = PushSnapshot,
    responses(
        (status = 200, description = "Lines of JSON, if asked for", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "It is there", body = PushedSnapshot),
        LibraryErrors,
        (status = 409, description = "It is of a sandbox, or of a format that does not travel", body = ErrorBody),
        (status = 502, description = "The registry does not take it", body = ErrorBody),
    )
)]
pub(super) async fn push(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
    headers: HeaderMap,
    Json(wanted): Json<PushSnapshot>,
) -> Answer<Response> {
    let PushSnapshot { reference, credentials, mount_from, yes } = wanted;
    let snapshot = app.own_snapshot(&caller, &tag)?;
    if let (Some(sandbox), false) = (&snapshot.view().record.branched_from, yes) {
        let text = format!(
            "snapshot {} is of sandbox {sandbox} and has the memory of whoever used it; say yes to push it",
            snapshot.tag()
        );
        return Err(ApiError::new(ErrorCode::WrongState, text));
    }
    let place = Place::take(&app).await?;
    snapshot.durable().await?;
    let engine = app.engine.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        progress.step("opening the snapshot");
        let departure = engine.depart(&snapshot.tag())?;
        progress.step(&format!("pushing to {reference}"));
        let repository = repository(&reference, credentials)?;
        let options = PushOptions { mount_from, ..PushOptions::default() };
        let moving = Moving::new(progress);
        let pushed =
            departure.send(|snapshot| repository.push(snapshot, &options, &moving)).map_err(unusable)?;
        engine.departed(&departure, &pushed.streams);
        Ok(Made::Pushed(PushedSnapshot {
            reference: format!("{}@{}", repository.name(), pushed.digest),
            sent_bytes: pushed.sent,
            present_bytes: pushed.present + pushed.mounted,
        }))
    })
    .await
}

fn parsed(tag: Option<String>) -> Answer<Option<Tag>> {
    tag.map(|tag| tag.parse().map_err(|error| malformed(format!("{error}")))).transpose()
}

pub(super) fn repository(reference: &str, given: Option<Credentials>) -> Answer<Repository> {
    let given = given.map(|it| credentials::Credentials { username: it.username, password: it.password });
    let credentials = match given {
        Some(given) => Some(given),
        None => own_credentials(reference).map_err(|error| malformed(chain(&error)))?,
    };
    Repository::new(reference, credentials.as_ref()).map_err(|error| malformed(chain(&error)))
}

/// An archive that is not taken.
fn refused(error: impl std::error::Error) -> ApiError {
    malformed(chain(&error))
}

/// A registry that gives or takes nothing that can be used.
pub(super) fn unusable(error: impl std::error::Error) -> ApiError {
    ApiError::new(ErrorCode::UpstreamFailed, chain(&error))
}

fn arrive(
    app: &Shared,
    caller: &Caller,
    artifact: &Artifact,
    origin: &dyn Origin,
    tag: Option<Tag>,
    progress: &(dyn Progress + Sync),
) -> Answer<Made> {
    progress.step(&format!("fetching {} MiB", artifact.raw_size() >> 20));
    let owner = app.owner(caller, caller.project.clone());
    let before = app.library.images.list()?;
    let destination = Destination { tag, owner: Some(owner) };
    let snapshot = app.engine.arrive(artifact, origin, &destination, &Moving::new(progress))?;
    let view = snapshot.view();
    if let Some(image) = view.record.shape.image {
        let was_there = before.iter().any(|known| known.id() == image);
        app.sharing.made(image, &caller.project, was_there)?;
    }
    let described = tokio::runtime::Handle::current().block_on(describe(app, caller, view))?;
    Ok(Made::Snapshot(Box::new(described)))
}

/// A transfer as jobs tell of it.
struct Moving<'a> {
    progress: &'a (dyn Progress + Sync),
    total: AtomicU64,
    told: AtomicU64,
}

impl<'a> Moving<'a> {
    fn new(progress: &'a (dyn Progress + Sync)) -> Moving<'a> {
        Moving { progress, total: AtomicU64::new(0), told: AtomicU64::new(0) }
    }
}

impl forkd_hub::Progress for Moving<'_> {
    fn total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
        self.told.store(0, Ordering::Relaxed);
    }

    fn done(&self, bytes: u64) {
        let mib = bytes >> 20;
        if self.told.swap(mib, Ordering::Relaxed) != mib {
            self.progress.detail(&format!("{mib} of {} MiB", self.total.load(Ordering::Relaxed) >> 20));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}
