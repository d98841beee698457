//! Images from Dockerfiles, with a context that is sent.

use std::fs::File;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::library::{Archive, BuildImage, Image, LibraryProgress};
use forkd_build::{Build, CONTEXT_LIMITS, UnpackedContext, build_image};
use forkd_engine::project::Project;
use forkd_image::Progress;
use forkd_image::builds::BuildCache;
use forkd_image::host_environment::HostEnvironment;
use forkd_image::images::Name;

use super::{MAX_MIB, make};
use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::build_guests::GuestShape;
use crate::error::{Answer, ApiError, chain};
use crate::extract::{Query, Upload};
use crate::jobs::{self, Made, Place};
use crate::routes::checks::{malformed, within};
use crate::routes::responses::LibraryErrors;
use crate::upload;

const DOCKERFILE: &str = "Dockerfile";
const MAX_VCPUS: u8 = 32;
const MEMORY_MIB: u64 = 1024;
const MIN_MEMORY_MIB: u64 = 64;
const MAX_PATH: usize = 4096;
const MAX_ARGUMENTS: usize = 1000;

/// Builds an image from a Dockerfile. Each step runs in a guest.
///
/// Needs the scope admin. The body is the build context: a tar archive, uncompressed or compressed with gzip or zstd, unpacked as
/// strictly as images are. The daemon reads the whole body before it responds. With `Accept: application/x-ndjson`, the response is
/// a stream of LibraryProgress with status 200, whose last line is the image or the error. The build is cancelled when the client
/// disconnects; finished steps stay in the build cache. A `forkd.toml` beside the Dockerfile becomes the image's recipe.
#[utoipa::path(
    post,
    path = "/v1/images/build",
    tag = "images",
    operation_id = "build_image",
    params(BuildImage),
    request_body(content = Archive, content_type = "application/x-tar", description = "The build context"),
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = LibraryProgress, content_type = "application/x-ndjson"),
        (status = 201, description = "The image", body = Image),
        LibraryErrors,
        (status = 400, description = "Invalid request, or the archive is refused", body = ErrorBody),
        (status = 422, description = "The Dockerfile cannot be built, or a command of it failed", body = ErrorBody),
        (status = 502, description = "A step's guest failed, or its base image cannot be pulled", body = ErrorBody),
        (status = 507, description = "This host has too little memory or disk space", body = ErrorBody),
    )
)]
pub(super) async fn build(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Query(pairs): Query<Vec<(String, String)>>,
    Upload(body): Upload,
) -> Answer<Response> {
    let wanted = convert(BuildImage::of_pairs(pairs).map_err(malformed)?)?;
    // Before a large body is sent for nothing.
    app.library.images.check_user()?;
    let place = Place::take(&app).await?;
    let memory_bytes = if app.build_guests.are_counted() { wanted.shape.memory_bytes } else { 0 };
    let room = app.engine.admit_guest(&app.own(&caller), wanted.shape.vcpus, memory_bytes).await?;
    let archive = upload::to_file(&app, body, app.library.directory(), app.limits.context_bytes).await?;
    let shared = app.clone();
    jobs::answer(&app, place, &headers, move |progress| {
        let _room = room;
        make(&shared, &caller, wanted, archive, progress)
    })
    .await
}

/// A build as it is asked for, checked.
#[derive(Debug)]
struct BuildRequest {
    name: Option<Name>,
    dockerfile: String,
    apart: Option<String>,
    target: Option<String>,
    arguments: Vec<(String, String)>,
    no_cache: bool,
    host_certs: bool,
    shape: GuestShape,
}

fn convert(wanted: BuildImage) -> Answer<BuildRequest> {
    let dockerfile = wanted.dockerfile.unwrap_or_else(|| DOCKERFILE.to_owned());
    for (name, path) in [("dockerfile", Some(&dockerfile)), ("apart", wanted.apart.as_ref())] {
        if path.is_some_and(|path| path.is_empty() || path.len() > MAX_PATH || path.contains('\0')) {
            return Err(malformed(format!("{name} must be a relative path in the archive")));
        }
    }
    if wanted.build_arg.len() > MAX_ARGUMENTS {
        return Err(malformed(format!("too many build_arg: expected at most {MAX_ARGUMENTS}")));
    }
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(malformed("invalid build_arg: expected NAME=VALUE")),
    };
    let memory_mib = wanted.memory_mib.unwrap_or(MEMORY_MIB);
    Ok(BuildRequest {
        name: make::name(wanted.name)?,
        dockerfile,
        apart: wanted.apart,
        target: wanted.target,
        arguments: wanted.build_arg.iter().map(pair).collect::<Answer<_>>()?,
        no_cache: wanted.no_cache,
        host_certs: wanted.host_certs,
        shape: GuestShape {
            vcpus: within("vcpus", wanted.vcpus.unwrap_or(1), 1..=MAX_VCPUS)?,
            memory_bytes: within("memory_mib", memory_mib, MIN_MEMORY_MIB..=MAX_MIB)? << 20,
            network: !wanted.no_network,
        },
    })
}

fn make(
    app: &App,
    caller: &Caller,
    wanted: BuildRequest,
    archive: File,
    progress: &dyn Progress,
) -> Answer<Made> {
    app.admit_image()?;
    let library = app.library.directory();
    let cache = BuildCache::new(&library);
    let BuildRequest { dockerfile, apart, .. } = &wanted;
    let unpacked =
        UnpackedContext::new(&cache, archive, dockerfile, apart.as_deref(), &CONTEXT_LIMITS, progress)?;
    let host = wanted.host_certs.then(HostEnvironment::collect).transpose().map_err(|error| {
        ApiError::new(ErrorCode::Unavailable, "no CA certificates found on the daemon's host")
            .detail(chain(&error))
    })?;
    let UnpackedContext { context, dockerfile, recipe, directory: _directory } = unpacked;
    let build = Build {
        path: wanted.dockerfile.into(),
        dockerfile,
        recipe,
        context,
        arguments: wanted.arguments.into_iter().collect(),
        target: wanted.target,
        name: wanted.name,
        uses_cache: !wanted.no_cache,
        host,
        account: None,
    };
    let image = carry_out(app, &caller.project, build, wanted.shape, progress)?;
    Ok(Made::Image(Box::new(app.shown_image(caller, &image))))
}

/// Builds an image for a project, in guests of this shape. Blocks.
pub fn carry_out(
    app: &App,
    project: &Project,
    build: Build,
    shape: GuestShape,
    progress: &dyn Progress,
) -> Answer<forkd_image::images::Image> {
    let find = |progress: &dyn Progress| app.build_guests.find(shape, progress);
    let library = app.library.directory();
    app.make_image(project, || Ok(build_image(&library, &app.library.images, build, &find, progress)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_are_taken_as_they_are_said() {
        let plain = convert(BuildImage::default()).unwrap();
        let usual = GuestShape { vcpus: 1, memory_bytes: 1 << 30, network: true };
        assert_eq!((&plain.dockerfile[..], plain.shape), ("Dockerfile", usual));
        let with = |change: fn(&mut BuildImage)| {
            let mut wanted = BuildImage::default();
            change(&mut wanted);
            convert(wanted)
        };
        let arguments = with(|it| it.build_arg = vec!["A=x=y".into(), "B=".into()]).unwrap().arguments;
        assert_eq!(arguments, [("A".into(), "x=y".into()), ("B".into(), String::new())]);
        for wrong in [
            with(|it| it.build_arg = vec!["A".into()]),
            with(|it| it.build_arg = vec!["=x".into()]),
            with(|it| it.vcpus = Some(0)),
            with(|it| it.memory_mib = Some(1)),
            with(|it| it.name = Some("a b".into())),
            with(|it| it.dockerfile = Some(String::new())),
            with(|it| it.apart = Some("a\0".into())),
        ] {
            assert_eq!(wrong.unwrap_err().code(), ErrorCode::Malformed);
        }
    }
}
