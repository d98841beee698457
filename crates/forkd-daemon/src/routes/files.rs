//! Files of a sandbox. Every path is the guest's: nothing here is ever looked up on the host.

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::{
    ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, LAST_MODIFIED, RANGE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use forkd_api::error::ErrorBody;
use forkd_api::file::{FileInfo, FileKind, FileList, FilePath, ListFiles, TAR};
use forkd_engine::files::{self, At, FileError, Info, Kind};
use forkd_envd::filesystem::Page;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::body::{Bounds, through};
use crate::during::during;
use crate::error::{Answer, ApiError};
use crate::extract::{Json, Path, Query, Upload, impatient};
use crate::ndjson::accepts;
use crate::routes::checks::{malformed, within};
use crate::routes::responses::FileErrors;

const OCTETS: &str = "application/octet-stream";
const MAX_PATH: usize = 4096;
const MAX_NAME: usize = 256;
/// What a list has.
const MAX_FILES: u32 = 10_000;

pub(super) fn routes() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(read, write, remove)).routes(routes!(info)).routes(routes!(list))
}

/// Reads a file; or, with `Accept: application/x-tar`, a file or directory as an archive, whose entries begin with its name.
///
/// The response is cut short if the file becomes shorter while it is read, or if the guest stops.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files",
    tag = "files",
    operation_id = "read_file",
    params(
        ("id" = String, Path),
        FilePath,
        ("Range" = Option<String>, Header, description = "A range of the file: `bytes=0-99`"),
    ),
    responses(
        (status = 200, description = "The whole file or archive", content(
            (Vec<u8> = "application/octet-stream"),
            (Vec<u8> = "application/x-tar"),
        )),
        (status = 206, description = "The requested range", body = Vec<u8>, content_type = "application/octet-stream"),
        FileErrors,
        (status = 409, description = "The path is a directory, or the sandbox is not running", body = ErrorBody),
        (status = 416, description = "The file does not have this range", body = ErrorBody),
    )
)]
async fn read(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(wanted): Query<FilePath>,
    headers: HeaderMap,
) -> Answer<Response> {
    let at = check(&wanted)?;
    let sandbox = app.sandbox(&caller, &id)?;
    let agent = sandbox.awake_agent().await?;
    if accepts(&headers, TAR) {
        let archive = during(&sandbox, files::pack(agent, at)).await?;
        return Ok(shown(&app, TAR, Body::new(archive)));
    }
    let reading = async {
        match files::read(agent, at, headers.get(RANGE)).await {
            Err(FileError::Range(size)) => Ok(Err(size)),
            answer => answer.map(Ok),
        }
    };
    let answer = match during(&sandbox, reading).await? {
        Ok(answer) => answer,
        Err(size) => {
            let mut response = ApiError::from(FileError::Range(None)).into_response();
            size.map(|size| response.headers_mut().insert(CONTENT_RANGE, size));
            return Ok(response);
        }
    };
    let (parts, content) = answer.into_parts();
    let mut response = shown(&app, OCTETS, Body::new(content));
    *response.status_mut() = parts.status;
    for name in [CONTENT_RANGE, ACCEPT_RANGES, LAST_MODIFIED] {
        if let Some(value) = parts.headers.get(&name) {
            response.headers_mut().insert(name, value.clone());
        }
    }
    Ok(response)
}

/// Writes the body to a file; or, with the content type `application/x-tar`, unpacks it into a directory, which is created if
/// missing.
///
/// A file is created or replaced when the whole body has arrived. If the body of an archive breaks off, the entries before that
/// point are unpacked. Without `user`, unpacked files get the owners that the archive names. The path of an archive's directory
/// must be absolute.
#[utoipa::path(
    put,
    path = "/v1/sandboxes/{id}/files",
    tag = "files",
    operation_id = "write_file",
    params(("id" = String, Path), FilePath),
    request_body(content(
        (Vec<u8> = "application/octet-stream"),
        (Vec<u8> = "application/x-tar"),
    )),
    responses(
        (status = 204, description = "Written"),
        FileErrors,
        (status = 404, description = "Sandbox not found", body = ErrorBody),
        (status = 409, description = "The path is a directory, a parent is not a directory, or the sandbox is not running", body = ErrorBody),
        (status = 507, description = "The sandbox's disk is full", body = ErrorBody),
    )
)]
async fn write(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(wanted): Query<FilePath>,
    headers: HeaderMap,
    Upload(body): Upload,
) -> Answer<StatusCode> {
    let at = check(&wanted)?;
    let sandbox = app.sandbox(&caller, &id)?;
    let agent = sandbox.awake_agent().await?;
    let bounds = Bounds { bytes: app.limits.file_bytes, guest_time: app.limits.guest_time };
    if is_tar(&headers) {
        if !at.path.starts_with('/') {
            return Err(malformed("the path of an archive's directory must be absolute"));
        }
        during(&sandbox, through(body, bounds, |archive| files::place(agent, at, archive))).await?;
    } else {
        during(&sandbox, through(body, bounds, |content| files::write(agent, at, content))).await?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// Removes a file, or a directory with everything in it.
#[utoipa::path(
    delete,
    path = "/v1/sandboxes/{id}/files",
    tag = "files",
    operation_id = "remove_file",
    params(("id" = String, Path), FilePath),
    responses((status = 204, description = "Removed"), FileErrors)
)]
async fn remove(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(wanted): Query<FilePath>,
) -> Answer<StatusCode> {
    let at = check(&wanted)?;
    let sandbox = app.sandbox(&caller, &id)?;
    during(&sandbox, files::remove(sandbox.awake_agent().await?, at)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns the metadata of a file.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/info",
    tag = "files",
    operation_id = "file_info",
    params(("id" = String, Path), FilePath),
    responses((status = 200, description = "The file", body = FileInfo), FileErrors)
)]
async fn info(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(wanted): Query<FilePath>,
) -> Answer<Json<FileInfo>> {
    let at = check(&wanted)?;
    let sandbox = app.sandbox(&caller, &id)?;
    let found = during(&sandbox, files::stat(sandbox.awake_agent().await?, at)).await?;
    Ok(Json(convert(found)))
}

/// Lists a directory, sorted by name, at most 10000 entries at once.
#[utoipa::path(
    get,
    path = "/v1/sandboxes/{id}/files/list",
    tag = "files",
    operation_id = "list_files",
    params(("id" = String, Path), ListFiles),
    responses(
        (status = 200, description = "The entries", body = FileList),
        FileErrors,
        (status = 404, description = "Sandbox or directory not found", body = ErrorBody),
        (status = 409, description = "The path is not a directory, or the sandbox is not running", body = ErrorBody),
        (status = 429, description = "The directory has too many entries for one answer, and the sandbox's agent is too old to list it in pages", body = ErrorBody),
    )
)]
async fn list(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Query(wanted): Query<ListFiles>,
) -> Answer<Json<FileList>> {
    let ListFiles { path, user, after, limit } = wanted;
    let wanted = FilePath { path, user };
    let at = check(&wanted)?;
    let limit = within("limit", limit.unwrap_or(MAX_FILES), 1..=MAX_FILES)?;
    let page = Page { after: after.unwrap_or_default(), limit };
    if page.after.len() > MAX_PATH {
        return Err(malformed(format!("after must have at most {MAX_PATH} bytes")));
    }
    let sandbox = app.sandbox(&caller, &id)?;
    let found = during(&sandbox, files::list(sandbox.awake_agent().await?, at, &page)).await?;
    let next = found.entries.last().filter(|_| found.more).map(|last| last.name.clone());
    let files = found.entries.into_iter().map(convert).collect();
    Ok(Json(FileList { files, truncated: next.is_some(), next }))
}

fn check(wanted: &FilePath) -> Answer<At<'_>> {
    let FilePath { path, user } = wanted;
    if path.is_empty() || path.len() > MAX_PATH || path.contains('\0') {
        return Err(malformed(format!("path must have 1 to {MAX_PATH} bytes and no NUL byte")));
    }
    let user = user.as_deref();
    if user.is_some_and(|user| user.is_empty() || user.len() > MAX_NAME || user.contains(['\0', ':'])) {
        return Err(malformed("user is too long or has an invalid character"));
    }
    Ok(At { path, user })
}

fn is_tar(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(TAR)
}

/// A guest's bytes, which no browser shows as a page, and which are not waited for for ever.
fn shown(app: &App, kind: &'static str, content: Body) -> Response {
    let mut response = Response::new(impatient(content, app.limits.guest_time));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn convert(found: Info) -> FileInfo {
    let Info { name, path, kind, size, mode, owner, group, modified_unix, symlink_target } = found;
    let kind = match kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Other => FileKind::Other,
    };
    FileInfo { name, path, kind, size, mode, owner, group, modified_unix, symlink_target }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_users_that_none_has_are_refused() {
        let with = |path: &str, user: Option<&str>| {
            check(&FilePath { path: path.into(), user: user.map(Into::into) }).is_ok()
        };
        assert!(with("/a", None) && with("~/x", Some("me")) && with(&"x".repeat(MAX_PATH), None));
        assert!(!with("", None) && !with("a\0", None) && !with(&"x".repeat(MAX_PATH + 1), None));
        assert!(!with("/a", Some("")) && !with("/a", Some("a:b")) && !with("/a", Some(&"x".repeat(300))));
    }
}
