//! Files of a build: sent once, under the hash of what they are.
//!
//! The client asks for a link and sends the archive there, without its key. So the link has a token for just this hash. Each
//! project has its own files. What no build has asked for in a week goes, and of more than fits, what was asked for longest ago.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use forkd_api::error::ErrorCode;
use forkd_api::token::Scope;
use forkd_engine::project::Project;
use serde_json::{Value, json};

use super::super::keys::{Keys, Purpose};
use super::project_of;
use super::steps::is_hash;
use crate::App;
use crate::templates;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::{Json, Path, Upload};
use forkd_daemon::operations::checks::malformed;
use forkd_daemon::operations::upload;

/// Who sends files, in the audit log.
const LINK: &str = "link";
const DIRECTORY: &str = "e2b-files";
const UPLOADS: &str = "/templates/uploads/";
const TOKEN: &str = "token=";

/// How long files are kept that no build asks for.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// What all files together may take. The newest stay in any case.
const MOST_BYTES: u64 = 8 << 30;

/// Where the files of a hash are, which are needed now.
pub(super) fn needed(app: &App, project: &Project, hash: &str) -> PathBuf {
    let path = path(app, &file_name(project, hash));
    // A missing file is reported by the caller. If the time cannot be set, the file is removed earlier.
    let _ = File::options().write(true).open(&path).and_then(|file| file.set_modified(SystemTime::now()));
    path
}

/// The name of the files of a hash, which is also the end of the link to them.
fn file_name(project: &Project, hash: &str) -> String {
    match project.is_default() {
        true => hash.to_owned(),
        false => format!("{project}.{hash}"),
    }
}

/// Whether it is such a name.
fn is_file_name(name: &str) -> bool {
    match name.rsplit_once('.') {
        Some((project, hash)) => project.parse::<Project>().is_ok() && is_hash(hash),
        None => is_hash(name),
    }
}

fn path(app: &App, name: &str) -> PathBuf {
    app.library.directory().join(DIRECTORY).join(name)
}

/// Whether the files are there already, and if not, where they are to be sent.
pub(super) async fn link(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path((template, hash)): Path<(String, String)>,
) -> Answer<(StatusCode, Json<Value>)> {
    if !is_hash(&hash) {
        return Err(malformed("invalid hash of files: expected 64 hexadecimal digits"));
    }
    let project = project_of(&app, &caller, &templates::tag_of(&template)?);
    let present = needed(&app, &project, &hash).is_file();
    let name = file_name(&project, &hash);
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let host = host.ok_or_else(|| malformed("the request has no host header"))?;
    let scheme = if app.tls { "https" } else { "http" };
    let url =
        format!("{scheme}://{host}{UPLOADS}{name}?{TOKEN}{}", app.e2b.keys.token(Purpose::Upload, &name));
    // Without a link, clients send nothing.
    let answer = if present { json!({ "present": true }) } else { json!({ "present": false, "url": url }) };
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Who sends files to a link: whoever was given it.
pub(crate) fn caller(keys: &Keys, uri: &Uri) -> Option<Caller> {
    let name = uri.path().strip_prefix(UPLOADS).filter(|name| is_file_name(name))?;
    // In the query, which no log has.
    let token = uri.query()?.strip_prefix(TOKEN)?;
    if !keys.is_right(Purpose::Upload, name, token.as_bytes()) {
        return None;
    }
    Some(Caller { name: LINK.into(), scope: Scope::Run, ..Caller::nobody() })
}

pub(super) async fn upload(
    State(app): State<App>,
    Extension(sender): Extension<Caller>,
    Path(name): Path<String>,
    Upload(body): Upload,
) -> Answer<StatusCode> {
    if sender.name != LINK || !is_file_name(&name) {
        return Err(ApiError::new(ErrorCode::Forbidden, "this link is not one of this daemon's"));
    }
    let path = path(&app, &name);
    let directory = path.parent().map(std::path::Path::to_owned).unwrap_or_default();
    let mut file = upload::to_file(&app, body, directory.clone(), app.limits.context_bytes).await?;
    // A file without a name cannot get one everywhere, so what has come is copied to one that has.
    let kept = tokio::task::spawn_blocking(move || -> std::io::Result<()> {
        let mut named = tempfile::NamedTempFile::new_in(&directory)?;
        std::io::copy(&mut file, named.as_file_mut())?;
        named.persist(&path).map_err(|error| error.error)?;
        prune(&directory, SystemTime::now(), MOST_BYTES)
    });
    kept.await.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::internal(&error))?;
    Ok(StatusCode::OK)
}

/// Removes files whose time is over, and the oldest beyond `most_bytes`. Also what was half copied when a daemon ended.
fn prune(directory: &std::path::Path, now: SystemTime, most_bytes: u64) -> io::Result<()> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() {
            files.push((metadata.modified()?, metadata.len(), entry.path()));
        }
    }
    files.sort_by_key(|(used, ..)| std::cmp::Reverse(*used));
    let mut total = 0u64;
    for (number, (used, length, path)) in files.into_iter().enumerate() {
        total = total.saturating_add(length);
        let old = now.duration_since(used).is_ok_and(|age| age > KEPT);
        if old || (number > 0 && total > most_bytes) {
            match fs::remove_file(&path) {
                // Two at once.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_files_go_and_of_too_many_the_oldest() {
        let directory = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let file = |name: &str, age: Duration| {
            let file = File::create_new(directory.path().join(name)).unwrap();
            file.set_len(100).unwrap();
            file.set_modified(now - age).unwrap();
        };
        let left = || {
            let mut names: Vec<_> = fs::read_dir(directory.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        file("a", Duration::ZERO);
        file("b", Duration::from_secs(60));
        file("c", KEPT - Duration::from_secs(60));
        file("d", KEPT + Duration::from_secs(60));
        prune(directory.path(), now, 300).unwrap();
        assert_eq!(left(), ["a", "b", "c"]);
        prune(directory.path(), now, 250).unwrap();
        assert_eq!(left(), ["a", "b"]);
        prune(directory.path(), now, 50).unwrap();
        assert_eq!(left(), ["a"], "the newest is the one that was just sent");
    }
}
