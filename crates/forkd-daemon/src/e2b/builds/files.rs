//! Files of a build: sent once, under the hash of what they are.
//!
//! The client asks for a link and sends the archive there, without its key. So the link has a token for just this hash.

use std::path::PathBuf;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use forkd_api::error::ErrorCode;
use forkd_api::token::{Scope, TokenLimits};
use serde_json::{Value, json};

use super::super::keys::Purpose;
use super::steps::is_hash;
use crate::app::{App, Shared};
use crate::auth::Caller;
use crate::error::{Answer, ApiError};
use crate::extract::{Json, Path, Upload};
use crate::routes::checks::malformed;
use crate::upload;

/// Who sends files, in the audit log.
const LINK: &str = "link";
const DIRECTORY: &str = "e2b-files";
const UPLOADS: &str = "/templates/uploads/";
const TOKEN: &str = "token=";

/// Where the files of a hash are.
pub(super) fn path(app: &App, hash: &str) -> PathBuf {
    app.library.directory().join(DIRECTORY).join(hash)
}

/// Whether the files are there already, and if not, where they are to be sent.
pub(super) async fn link(
    State(app): State<Shared>,
    headers: HeaderMap,
    Path((_, hash)): Path<(String, String)>,
) -> Answer<(StatusCode, Json<Value>)> {
    if !is_hash(&hash) {
        return Err(malformed("the hash of files has 64 hexadecimal digits"));
    }
    let present = path(&app, &hash).is_file();
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    let host = host.ok_or_else(|| malformed("the request names no host"))?;
    let scheme = if app.tls { "https" } else { "http" };
    let url =
        format!("{scheme}://{host}{UPLOADS}{hash}?{TOKEN}{}", app.e2b.keys.token(Purpose::Upload, &hash));
    // Without a link, clients send nothing.
    let answer = if present { json!({ "present": true }) } else { json!({ "present": false, "url": url }) };
    Ok((StatusCode::CREATED, Json(answer)))
}

/// Who sends files to a link: whoever was given it.
pub(crate) fn caller(app: &App, uri: &Uri) -> Option<Caller> {
    let hash = uri.path().strip_prefix(UPLOADS).filter(|hash| is_hash(hash))?;
    // In the query, which no log has.
    let token = uri.query()?.strip_prefix(TOKEN)?;
    if !app.e2b.keys.is_right(Purpose::Upload, hash, token.as_bytes()) {
        return None;
    }
    Some(Caller { name: LINK.into(), scope: Scope::Run, limits: TokenLimits::default() })
}

pub(super) async fn upload(
    State(app): State<Shared>,
    Extension(sender): Extension<Caller>,
    Path(hash): Path<String>,
    Upload(body): Upload,
) -> Answer<StatusCode> {
    if sender.name != LINK || !is_hash(&hash) {
        return Err(ApiError::new(ErrorCode::Forbidden, "this link is not one of this daemon's"));
    }
    let path = path(&app, &hash);
    let directory = path.parent().map(std::path::Path::to_owned).unwrap_or_default();
    let mut file = upload::to_file(&app, body, directory.clone(), app.limits.context_bytes).await?;
    // A file without a name cannot get one everywhere, so what has come is copied to one that has.
    let kept = tokio::task::spawn_blocking(move || -> std::io::Result<()> {
        let mut named = tempfile::NamedTempFile::new_in(&directory)?;
        std::io::copy(&mut file, named.as_file_mut())?;
        named.persist(&path).map_err(|error| error.error)?;
        Ok(())
    });
    kept.await.map_err(|error| ApiError::internal(&error))?.map_err(|error| ApiError::internal(&error))?;
    Ok(StatusCode::OK)
}
