//! Snapshots that leave and arrive: as an archive, or through a registry.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::UNIX_EPOCH;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::hint::HintCode;
use forkd_api::library::{Archive, Credentials, LibraryProgress};
use forkd_api::snapshot::{
    ListRepository, LoadSnapshot, PullSnapshot, PushSnapshot, PushedSnapshot, RepositoryTag, RepositoryTags,
    Snapshot,
};
use forkd_engine::{Destination, Origin, SnapshotView};
use forkd_hub::layout::{self, Layout};
use forkd_hub::registry::{PushOptions, Repository, Tagged};
use forkd_hub::{Artifact, Variant};
use forkd_image::Progress;
use forkd_source::credentials::{self, own_credentials};
use forkd_store::{Digest, Tag};

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
/// What a snapshot is called in an archive, and what a reference without a tag names.
const LATEST: &str = "latest";
/// Tags of a repository that are listed.
const MAX_LISTED: usize = 1000;

/// Downloads a snapshot as an archive: an OCI image layout in a tar file, with all snapshots that it is based on.
///
/// Waits until the snapshot is on disk. If the connection breaks, the archive is incomplete.
#[utoipa::path(
    get,
    path = "/v1/snapshots/{tag}/archive",
    tag = "snapshots",
    operation_id = "save_snapshot",
    params(("tag" = String, Path)),
    responses(
        (status = 200, description = "The archive", body = Vec<u8>, content_type = "application/x-tar"),
        (status = 403, description = "The snapshot is public, but belongs to another project", body = ErrorBody),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
        (status = 409, description = "The snapshot has a format that cannot be transferred", body = ErrorBody),
        (status = 429, description = "Too many transfers and long jobs are running", body = ErrorBody),
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

/// Loads a snapshot from an archive that GET has returned.
///
/// Needs the scope admin. The body is the archive. The daemon reads the whole body before it responds; the response can be a stream
/// as for a pull of an image.
#[utoipa::path(
    post,
    path = "/v1/snapshots/load",
    tag = "snapshots",
    operation_id = "load_snapshot",
    params(LoadSnapshot),
    request_body(content = Archive, content_type = "application/octet-stream", description = "The archive"),
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The snapshot", body = Snapshot),
        LibraryErrors,
        (status = 400, description = "Invalid request, or the archive is refused", body = ErrorBody),
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
        let spool = shared.library.images.scratch()?;
        // What is unpacked is no larger than what is packed.
        let size = file.metadata().map_err(|error| ApiError::internal(&error))?.len();
        let room = shared.engine.take_room(spool.path(), size)?;
        let unpacking = Unpacking { progress, size, told: AtomicU64::new(0) };
        let layout = Layout::unpack(file, spool.path(), limit, &unpacking).map_err(refused)?;
        drop(room);
        let choose = |variants: &[Variant]| shared.engine.choose_variant(variants);
        let artifact = layout.open(&choose).map_err(refused)?;
        arrive(&shared, &caller, &artifact, &layout, tag, progress)
    })
    .await
}

/// Pulls a snapshot from a registry, with all snapshots that it is based on.
///
/// Needs the scope admin. If the daemon has a policy, the snapshot must be signed as it requires; if the request has a key, it must
/// be signed with that key. Signatures are checked before anything else is fetched. Streams and idempotency work as for a pull of
/// an image. The data of a failed pull is kept for a day, and the next pull fetches the rest. If the reference names several
/// variants, the first that fits this host is pulled.
#[utoipa::path(
    post,
    path = "/v1/snapshots/pull",
    tag = "snapshots",
    operation_id = "pull_snapshot",
    params(("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer")),
    request_body = PullSnapshot,
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The snapshot", body = Snapshot),
        LibraryErrors,
        (status = 403, description = "The snapshot is not signed as the policy or the request requires", body = ErrorBody),
        (status = 409, description = "The tag is in use", body = ErrorBody),
        (status = 502, description = "The registry has no usable snapshot", body = ErrorBody),
    )
)]
pub(super) async fn pull(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(wanted): Json<PullSnapshot>,
) -> Answer<Response> {
    let PullSnapshot { reference, tag, credentials, key, reuse } = wanted;
    let tag = parsed(tag)?;
    let key = key.map(|key| trust::public_key(&key)).transpose()?;
    let place = Place::take(&app).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        progress.step(&format!("pulling {reference}"));
        let repository = repository(&reference, credentials)?;
        let choose = |variants: &[Variant]| shared.engine.choose_variant(variants);
        let artifact =
            trust::open(&shared.snapshot_policy, &repository, key.as_ref(), &choose, &Moving::new(progress))?;
        if !reuse {
            return arrive(&shared, &caller, &artifact, &repository, tag, progress);
        }
        let here = || {
            let (digest, tags) = shared.engine.same_as(&artifact)?;
            let here = tags.iter().find_map(|tag| shared.snapshot(&caller, tag.as_str()).ok());
            let here = here.map(|here| described(&shared, &caller, here.view())).transpose()?;
            Ok::<_, ApiError>((digest, here))
        };
        let tag = match here()? {
            (_, Some(made)) => return Ok(made),
            (digest, None) => tag.map_or_else(|| local_name(&repository.short_name(), &digest), Ok)?,
        };
        match arrive(&shared, &caller, &artifact, &repository, Some(tag), progress) {
            // Another pull of the same was faster.
            Err(error) if error.code() == ErrorCode::NameTaken => here()?.1.ok_or(error),
            arrived => arrived,
        }
    })
    .await
}

/// Lists the tags of a repository in a registry, at most 1000, and what they name.
///
/// Needs the scope admin, as a pull does.
#[utoipa::path(
    post,
    path = "/v1/snapshots/repository",
    tag = "snapshots",
    operation_id = "list_repository",
    request_body = ListRepository,
    responses(
        (status = 200, description = "The tags", body = RepositoryTags),
        (status = 400, description = "Invalid name of a repository", body = ErrorBody),
        (status = 429, description = "Too many long jobs are running", body = ErrorBody),
        (status = 502, description = "The registry does not list its tags", body = ErrorBody),
    )
)]
pub(super) async fn list(
    State(app): State<Shared>,
    Json(wanted): Json<ListRepository>,
) -> Answer<Json<RepositoryTags>> {
    let ListRepository { repository: name, credentials } = wanted;
    asked(&app, move |progress| {
        let repository = repository(&name, credentials)?;
        if repository.reference() != format!("{}:{LATEST}", repository.name()) {
            return Err(malformed(format!("{name:?} names a tag or a digest; expected registry/repository")));
        }
        let (tags, truncated) = repository.list(MAX_LISTED, progress).map_err(unusable)?;
        let tags = tags.into_iter().map(listed).collect();
        Ok(Json(RepositoryTags { repository: repository.name(), tags, truncated }))
    })
    .await
}

fn listed(tagged: Tagged) -> RepositoryTag {
    let created = tagged.created.and_then(|created| humantime::parse_rfc3339_weak(&created).ok());
    RepositoryTag {
        tag: tagged.tag,
        digest: tagged.digest.to_string(),
        snapshot: tagged.is_snapshot,
        kind: tagged.kind,
        size_bytes: tagged.size,
        created_at_unix: created.and_then(|created| Some(created.duration_since(UNIX_EPOCH).ok()?.as_secs())),
    }
}

/// Asks a registry in a thread that may wait. It ends when its caller goes away before it answers.
pub(super) async fn asked<T: Send + 'static>(
    app: &Shared,
    work: impl FnOnce(&dyn forkd_hub::Progress) -> Answer<T> + Send + 'static,
) -> Answer<T> {
    let place = Place::take(app).await?;
    let caller = Arc::new(());
    let asking = Asking { caller: Arc::downgrade(&caller), app: app.clone() };
    let working = tokio::task::spawn_blocking(move || {
        let _place = place;
        work(&asking)
    });
    let answered = working.await.unwrap_or_else(|error| Err(ApiError::internal(&error)));
    drop(caller);
    answered
}

struct Asking {
    caller: Weak<()>,
    app: Shared,
}

impl forkd_hub::Progress for Asking {
    fn is_cancelled(&self) -> bool {
        self.caller.strong_count() == 0 || self.app.is_stopping()
    }
}

/// What a snapshot is called that was pulled by its reference only. With its digest in it, the name is of these contents, wherever the
/// registry's tag moves.
fn local_name(short_name: &str, digest: &Digest) -> Answer<Tag> {
    let fits =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || ".-_".contains(letter);
    let name = short_name.to_ascii_lowercase();
    let name: String = name.chars().map(|letter| if fits(letter) { letter } else { '-' }).take(48).collect();
    let digest = digest.to_string();
    format!("{name}-{}", &digest[..12]).parse().map_err(|error| malformed(format!("{error}")))
}

/// Pushes a snapshot to a registry, with all snapshots that it is based on. Blobs that the registry already has are not sent.
///
/// Needs the scope admin. A snapshot of a sandbox contains the memory of the sandbox's users, and so does every snapshot based on
/// it, also after it was compacted, saved and loaded, or pulled from a registry: it is pushed only with `yes`. With `variant`, the
/// tag names several snapshots, and a pull gets the first that fits the host. Streams and idempotency work as for a pull of an
/// image.
#[utoipa::path(
    post,
    path = "/v1/snapshots/{tag}/push",
    tag = "snapshots",
    operation_id = "push_snapshot",
    params(
        ("tag" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer"),
    ),
    request_body = PushSnapshot,
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The result of the push", body = PushedSnapshot),
        LibraryErrors,
        (status = 409, description = "The snapshot contains memory of a sandbox, or has a format that cannot be transferred", body = ErrorBody),
        (status = 502, description = "The registry refuses the snapshot", body = ErrorBody),
    )
)]
pub(super) async fn push(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
    headers: HeaderMap,
    Json(wanted): Json<PushSnapshot>,
) -> Answer<Response> {
    let PushSnapshot { reference, credentials, mount_from, variant, variants_key, yes } = wanted;
    let variants_key = variants_key.as_deref().map(trust::public_key).transpose()?;
    let snapshot = app.own_snapshot(&caller, &tag)?;
    if let (Some(reason), false) = (app.engine.user_memory(&snapshot), yes) {
        return Err(ApiError::new(ErrorCode::WrongState, reason.to_string()).hint(HintCode::ConfirmPush));
    }
    let place = Place::take(&app).await?;
    snapshot.durable().await?;
    let engine = app.engine.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        progress.step("opening the snapshot");
        let departure = engine.depart(&snapshot.tag())?;
        progress.step(&format!("pushing to {reference}"));
        let repository = repository(&reference, credentials)?;
        let mut options = PushOptions { mount_from, variant, variants_key };
        options.mount_from.extend(repository.mountable(&departure.repositories()));
        let moving = Moving::new(progress);
        let pushed =
            departure.send(|snapshot| repository.push(snapshot, &options, &moving)).map_err(unusable)?;
        engine.departed(&departure, &pushed.streams, &repository.name());
        Ok(Made::Pushed(PushedSnapshot {
            reference: format!("{}@{}", repository.name(), pushed.root),
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
    progress.step("fetching missing data");
    let owner = app.owner(caller, caller.project.clone());
    let before = app.library.images.list()?;
    let destination = Destination { tag, owner: Some(owner) };
    let snapshot = app.engine.arrive(artifact, origin, &destination, &Moving::new(progress))?;
    let view = snapshot.view();
    if let Some(image) = view.record.shape.image {
        let was_there = before.iter().any(|known| known.id() == image);
        app.sharing.made(image, &caller.project, was_there)?;
    }
    described(app, caller, view)
}

fn described(app: &Shared, caller: &Caller, view: SnapshotView) -> Answer<Made> {
    let described = tokio::runtime::Handle::current().block_on(describe(app, caller, view))?;
    Ok(Made::Snapshot(Box::new(described)))
}

/// Reports unpacking an archive as details of a job. Transfers are in uncompressed bytes, so this is not one.
struct Unpacking<'a> {
    progress: &'a (dyn Progress + Sync),
    size: u64,
    told: AtomicU64,
}

impl forkd_hub::Progress for Unpacking<'_> {
    fn done(&self, bytes: u64) {
        let mib = bytes >> 20;
        if self.told.fetch_max(mib, Ordering::Relaxed) < mib {
            self.progress.detail(&format!("{mib} of {} MiB", self.size >> 20));
        }
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
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
        self.progress.transfer(0, bytes);
    }

    fn done(&self, bytes: u64) {
        let (mib, total) = (bytes >> 20, self.total.load(Ordering::Relaxed));
        if self.told.fetch_max(mib, Ordering::Relaxed) < mib || bytes == total {
            self.progress.transfer(bytes, total);
        }
    }

    fn is_cancelled(&self) -> bool {
        self.progress.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_of_a_reference_and_its_contents() {
        let digest = Digest::of(b"");
        for (short, expected) in [
            ("app-warm", "app-warm-af1349b9f5f9"),
            ("app-V1.2_x", "app-v1.2_x-af1349b9f5f9"),
            ("a", "a-af1349b9f5f9"),
        ] {
            assert_eq!(local_name(short, &digest).unwrap().as_str(), expected);
        }
        assert_eq!(local_name(&"a".repeat(200), &digest).unwrap().as_str().len(), 61);
    }
}
