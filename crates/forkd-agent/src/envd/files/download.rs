//! `GET /files`: a file's contents.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use forkd_envd::files::FileQuery;
use forkd_envd::signature::Operation;
use rustix::fs::OFlags;

use super::range::{self, FileRange};
use super::{access, body};
use crate::agent::Agent;
use crate::envd::rest::RestError;
use crate::envd::{caller, paths};
use crate::runtime::blocking;

/// Below this, compressing costs more than it saves.
const WORTH_COMPRESSING: u64 = 1024;
/// What is read of a file that says it is empty: those of /proc and /sys do, and have a page or two.
const UNSIZED: u64 = 1 << 20;

pub async fn download(
    State(agent): State<Arc<Agent>>,
    query: Query<FileQuery>,
    headers: HeaderMap,
) -> Response {
    serve(&agent, &query, &headers).await.unwrap_or_else(IntoResponse::into_response)
}

async fn serve(agent: &Agent, query: &FileQuery, headers: &HeaderMap) -> Result<Response, RestError> {
    access::check(agent, headers, query, Operation::Read)?;
    let user = caller::find_user(agent, query.username.clone()).await?;
    let workdir = agent.settings().default_workdir;
    let path = paths::resolve(query.path.as_deref().unwrap_or_default(), &user, workdir.as_deref())
        .map_err(|error| RestError::bad_request(error.to_string()))?;
    let subject = path.display().to_string();
    let opened = blocking(move || open(&path)).await.map_err(|error| RestError::system(&subject, &error))?;
    answer(opened?, headers).map_err(|error| RestError::system(&subject, &error))
}

#[derive(Debug)]
enum Opened {
    Sized {
        file: File,
        size: u64,
        modified: Option<SystemTime>,
    },
    /// A file without a size, which has been read.
    Read(Vec<u8>),
}

fn open(path: &Path) -> Result<Opened, RestError> {
    let wrong = |error: io::Error| RestError::system(&path.display().to_string(), &error);
    // Without waiting: opening a pipe without a writer would.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file =
        File::options().read(true).custom_flags(nonblocking).open(path).map_err(|error| {
            match error.kind() {
                io::ErrorKind::NotFound => {
                    RestError::not_found(format!("path '{}' does not exist", path.display()))
                }
                _ => wrong(error),
            }
        })?;
    let found = file.metadata().map_err(wrong)?;
    if found.is_dir() {
        return Err(RestError::bad_request(format!("path '{}' is a directory", path.display())));
    }
    if !found.is_file() {
        return Err(RestError::bad_request(format!("path '{}' is not a regular file", path.display())));
    }
    if found.len() > 0 {
        return Ok(Opened::Sized { file, size: found.len(), modified: found.modified().ok() });
    }
    let mut contents = Vec::new();
    file.take(UNSIZED).read_to_end(&mut contents).map_err(wrong)?;
    Ok(Opened::Read(contents))
}

fn answer(opened: Opened, headers: &HeaderMap) -> io::Result<Response> {
    let (mut file, size, modified) = match opened {
        Opened::Sized { file, size, modified } => (file, size, modified),
        Opened::Read(contents) => return Ok(octets(Response::new(Body::from(contents)))),
    };
    // A request for a part of an unchanged file (If-Range) gets all of it: nothing here proves it unchanged.
    let asked = headers.get(header::RANGE).filter(|_| !headers.contains_key(header::IF_RANGE));
    let mut response = match range::parse(asked.and_then(|value| value.to_str().ok()), size) {
        FileRange::Outside => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            response.headers_mut().insert(header::CONTENT_RANGE, value(&format!("bytes */{size}")));
            return Ok(response);
        }
        FileRange::Part { start, length } => {
            file.seek(SeekFrom::Start(start))?;
            let mut response = sized(file, length);
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let end = start + length - 1;
            response
                .headers_mut()
                .insert(header::CONTENT_RANGE, value(&format!("bytes {start}-{end}/{size}")));
            response
        }
        FileRange::Whole if size >= WORTH_COMPRESSING && accepts_gzip(headers) => {
            let mut response = Response::new(body::gzip(file, size));
            response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            response
        }
        FileRange::Whole => sized(file, size),
    };
    let fields = response.headers_mut();
    fields.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    fields.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    if let Some(modified) = modified.filter(|time| *time >= SystemTime::UNIX_EPOCH) {
        fields.insert(header::LAST_MODIFIED, value(&http_date(modified)));
    }
    Ok(octets(response))
}

fn sized(file: File, length: u64) -> Response {
    let mut response = Response::new(body::plain(file, length));
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}

fn octets(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    response
}

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn http_date(time: SystemTime) -> String {
    httpdate::fmt_http_date(time)
}

/// Whether the client names gzip, and not with a weight of nothing.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight =
            parts.find_map(|part| part.strip_prefix("q=")).and_then(|weight| weight.parse::<f32>().ok());
        named && weight.is_none_or(|weight| weight > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_accepts_gzip() {
        let accepts = |value: &'static str| {
            accepts_gzip(&HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]))
        };
        assert!(accepts("gzip") && accepts("br, GZIP;q=0.5") && accepts("gzip; q=1"));
        assert!(
            !accepts("identity") && !accepts("gzip;q=0") && !accepts("") && !accepts_gzip(&HeaderMap::new())
        );
    }

    #[test]
    fn only_regular_files_are_opened() {
        assert!(
            matches!(open(Path::new("/proc/self/status")), Ok(Opened::Read(contents)) if !contents.is_empty())
        );
        assert_eq!(open(Path::new("/")).unwrap_err().status(), 400);
        assert_eq!(open(Path::new("/dev/zero")).unwrap_err().status(), 400);
        assert_eq!(open(Path::new("/no/such/file")).unwrap_err().status(), 404);
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert_eq!(open(&pipe).unwrap_err().status(), 400);
    }
}
