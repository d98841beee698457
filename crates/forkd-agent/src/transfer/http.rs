//! The two calls.

use std::path::PathBuf;

use axum::body::{Body, to_bytes};
use axum::extract::{Query, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio::sync::mpsc;

use super::pack::{self, PackRequest};
use super::pipe::{Chunks, Reader, Writer};
use super::place::{self, Dress, Owner};
use crate::envd::{RestError, SharedBody};
use crate::runtime::blocking;
use crate::users::Users;

const MAX_REQUEST: usize = 1 << 20;
/// Chunks that wait for the other side.
const QUEUE: usize = 2;

#[derive(Debug, Deserialize)]
pub struct PlaceQuery {
    /// The directory that names in the archive begin at. The root without one.
    #[serde(default)]
    into: Option<String>,
    /// Who all of it belongs to, by name or number, as the image knows them. Without one, the archive's numbers hold.
    #[serde(default)]
    owner: Option<String>,
    /// The mode of all files and directories, in octal. Without one, the archive's hold.
    #[serde(default)]
    mode: Option<String>,
}

pub async fn place(Query(query): Query<PlaceQuery>, request: Request) -> Response {
    let body = SharedBody::new(request.into_body());
    let result = receive(query, body.clone()).await;
    // What follows the archive's end, or all that was not wanted any more: most clients listen only after they have sent.
    body.drain().await;
    match result {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(error) => error.into_response(),
    }
}

async fn receive(query: PlaceQuery, body: SharedBody) -> Result<(), RestError> {
    let into = PathBuf::from(query.into.unwrap_or_else(|| "/".into()));
    if !into.is_absolute() {
        return Err(RestError::bad_request("the destination directory is not an absolute path"));
    }
    let mode = match query.mode.map(|text| u32::from_str_radix(&text, 8)).transpose() {
        Ok(mode) if mode.is_none_or(|mode| mode <= 0o7777) => mode,
        _ => return Err(RestError::bad_request("invalid mode")),
    };
    let (sender, receiver) = mpsc::channel(QUEUE);
    let work = tokio::spawn(blocking(move || {
        let owner = match query.owner {
            Some(name) => {
                let user = Users::read().find(&name);
                let user = user.map_err(|unknown| RestError::bad_request(unknown.to_string()))?;
                Some(Owner { uid: user.uid, gid: user.gid })
            }
            None => None,
        };
        place::place(Reader::new(receiver), &into, &Dress { owner, mode })
    }));
    while let Some(chunk) = body.next().await {
        let broken = chunk.is_err();
        if sender.send(chunk).await.is_err() || broken {
            break;
        }
    }
    drop(sender);
    let failed = |error: &dyn std::error::Error| RestError::bad_request(error.to_string());
    work.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?
}

pub async fn pack(request: Request) -> Response {
    match send(request).await {
        Ok(body) => body.into_response(),
        Err(error) => error.into_response(),
    }
}

async fn send(request: Request) -> Result<Body, RestError> {
    let bytes = to_bytes(request.into_body(), MAX_REQUEST).await;
    let bytes = bytes.map_err(|error| RestError::bad_request(error.to_string()))?;
    let request: PackRequest = serde_json::from_slice(&bytes)
        .map_err(|error| RestError::bad_request(format!("not understood: {error}")))?;
    let found = blocking(move || pack::find(&request)).await;
    let found = found.map_err(|error| RestError::bad_request(error.to_string()))??;
    let (sender, receiver) = mpsc::channel(QUEUE);
    tokio::spawn(blocking(move || {
        let mut writer = Writer::new(sender);
        let written = pack::write(&found, &mut writer);
        writer.finish(written);
    }));
    Ok(Body::from_stream(Chunks(receiver)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn packed(sources: &[&str], destination: &str) -> (StatusCode, Vec<u8>) {
        let request = json!({ "sources": sources, "destination": destination }).to_string();
        let response = pack(Request::new(request.into())).await;
        let status = response.status();
        (status, to_bytes(response.into_body(), usize::MAX).await.unwrap().to_vec())
    }

    async fn placed(
        into: &str,
        owner: Option<&str>,
        mode: Option<&str>,
        archive: Vec<u8>,
    ) -> (StatusCode, String) {
        let text = |text: &str| Some(text.to_owned());
        let query = PlaceQuery { into: text(into), owner: owner.and_then(text), mode: mode.and_then(text) };
        let response = place(Query(query), Request::new(archive.into())).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn files_go_out_and_in() {
        let from = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..500_000_u32).flat_map(u32::to_le_bytes).collect();
        std::fs::write(from.path().join("large"), &content).unwrap();
        std::fs::write(from.path().join("small"), "x").unwrap();
        let source = from.path().display().to_string();
        let (status, archive) = packed(&[&source], "/there").await;
        assert_eq!(status, StatusCode::OK);
        let to = tempfile::tempdir().unwrap();
        let into = to.path().display().to_string();
        let answer = placed(&into, None, Some("640"), archive.clone()).await;
        assert_eq!(answer, (StatusCode::NO_CONTENT, String::new()));
        assert!(std::fs::read(to.path().join("there/large")).unwrap() == content);

        let (status, said) = placed(&into, Some("no-such-user"), None, archive.clone()).await;
        assert!(
            status == StatusCode::BAD_REQUEST && said.contains("there is no user 'no-such-user'"),
            "{said}"
        );
        for (into, mode) in [("relative", "640"), (&into[..], "rwx"), (&into[..], "10000")] {
            let (status, said) = placed(into, None, Some(mode), archive.clone()).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{said}");
        }
        let (status, _) = placed(&into, None, None, archive[..archive.len() / 2].to_vec()).await;
        assert!(!status.is_success());
        assert_eq!(packed(&["/no/such/file"], "/x").await.0, StatusCode::BAD_REQUEST);
        assert_eq!(packed(&["relative"], "/x").await.0, StatusCode::BAD_REQUEST);
    }
}
