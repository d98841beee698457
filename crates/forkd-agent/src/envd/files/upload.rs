//! `POST /files`: files into the sandbox, as a form or as they are.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use forkd_envd::files::{FileQuery, Written};
use forkd_envd::signature::Operation;

use super::access;
use super::multipart::Parts;
use super::shared_body::SharedBody;
use super::sink::{Encoding, FileSink};
use crate::agent::Agent;
use crate::envd::rest::RestError;
use crate::envd::{caller, metadata, paths};
use crate::users::User;

pub async fn upload(State(agent): State<Arc<Agent>>, query: Query<FileQuery>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = SharedBody::new(body);
    match serve(&agent, &query, &parts.headers, body.clone()).await {
        Ok(written) => Json(written).into_response(),
        Err(error) => {
            // Most clients look for an answer only after they have sent everything.
            body.drain().await;
            error.into_response()
        }
    }
}

/// Where files of this request go.
#[derive(Debug)]
struct Place {
    user: User,
    workdir: Option<PathBuf>,
}

impl Place {
    fn resolve(&self, path: &str) -> Result<PathBuf, RestError> {
        paths::resolve(path, &self.user, self.workdir.as_deref())
            .map_err(|error| RestError::bad_request(error.to_string()))
    }
}

async fn serve(
    agent: &Agent,
    query: &FileQuery,
    headers: &HeaderMap,
    body: SharedBody,
) -> Result<Vec<Written>, RestError> {
    access::check(agent, headers, query, Operation::Write)?;
    let user = caller::find_user(agent, query.username.clone()).await?;
    let place = Place { user, workdir: agent.settings().default_workdir };
    let compressed = is_compressed(headers)?;
    let kind = text(headers, header::CONTENT_TYPE);
    let path = query.path.as_deref().filter(|path| !path.is_empty());
    if kind.to_ascii_lowercase().starts_with("multipart/form-data") {
        if compressed {
            return Err(RestError::bad_request(
                "compressed multipart forms are not supported; send application/octet-stream",
            ));
        }
        return form(&place, path, headers, Parts::new(kind, body)?).await;
    }
    let path = path.ok_or_else(|| RestError::bad_request("missing query parameter: path"))?;
    let encoding = Encoding { compressed, whole: query.whole };
    octets(&place, path, headers, body, encoding).await
}

async fn octets(
    place: &Place,
    path: &str,
    headers: &HeaderMap,
    body: SharedBody,
    encoding: Encoding,
) -> Result<Vec<Written>, RestError> {
    let notes = metadata::from_headers(headers);
    let mut sink = FileSink::create(place.resolve(path)?, place.user.clone(), notes, encoding).await?;
    while let Some(bytes) = body.next().await {
        let bytes =
            bytes.map_err(|error| RestError::bad_request(format!("the upload broke off: {error}")))?;
        sink.write(&bytes).await?;
    }
    Ok(vec![sink.finish().await?])
}

/// The path of the query is for the one file of a form. With several, each has its own.
async fn form(
    place: &Place,
    path: Option<&str>,
    headers: &HeaderMap,
    mut parts: Parts,
) -> Result<Vec<Written>, RestError> {
    let mut written = Vec::new();
    while let Some(mut part) = parts.next().await? {
        let own = part.file_name();
        let name = match (path, &own) {
            (Some(_), _) if !written.is_empty() => {
                return Err(RestError::bad_request(
                    "path in the query names one file, but the form contains several",
                ));
            }
            (Some(path), _) => path,
            (None, Some(own)) if !own.is_empty() => own.as_str(),
            (None, _) => {
                return Err(RestError::bad_request(
                    "missing path: expected a file name in each part, or path in the query",
                ));
            }
        };
        let notes = metadata::from_headers(headers);
        let mut sink =
            FileSink::create(place.resolve(name)?, place.user.clone(), notes, Encoding::default()).await?;
        while let Some(chunk) = part.chunk().await? {
            sink.write(&chunk).await?;
        }
        written.push(sink.finish().await?);
    }
    if written.is_empty() {
        Err(RestError::bad_request("the form has no part named 'file'"))
    } else {
        Ok(written)
    }
}

fn is_compressed(headers: &HeaderMap) -> Result<bool, RestError> {
    match text(headers, header::CONTENT_ENCODING).to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(false),
        "gzip" => Ok(true),
        other => Err(RestError::bad_request(format!(
            "unsupported content-encoding '{other}': expected gzip or identity"
        ))),
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}
