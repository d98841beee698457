//! Archives into and out of a guest, as they come: never whole in memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use forkd_envd::connect::refusal;
use forkd_envd::files::{FileQuery, encoded};
use forkd_envd::port::ENVD;
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::sync::mpsc;

use crate::agent::{Agent, AgentError};

const MAX_ERROR: usize = 64 << 10;

/// Pieces of an archive, or why there are no more.
pub type Piece = io::Result<Bytes>;

/// Files of a guest to take out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pack<'a> {
    /// Absolute; with patterns.
    pub sources: &'a [String],
    /// What they are called in the archive: absolute; a directory if it ends with a slash.
    pub destination: &'a str,
}

/// How an archive is unpacked in a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place<'a> {
    /// The directory that its names begin at.
    pub into: &'a str,
    /// Who everything belongs to, as the guest's users are called or numbered. Without one, the archive's numbers hold.
    pub owner: Option<&'a str>,
    /// The mode of all files and directories. Without one, the archive's hold.
    pub mode: Option<u32>,
}

/// Unpacks an archive in the guest.
pub async fn place(
    agent: &Agent,
    place: &Place<'_>,
    archive: mpsc::Receiver<Piece>,
) -> Result<(), AgentError> {
    place_body(agent, place, Pieces(archive)).await
}

/// The same, of a body as it comes.
pub(crate) async fn place_body<B>(agent: &Agent, place: &Place<'_>, archive: B) -> Result<(), AgentError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut path = format!("/forkd/place?into={}", encoded(place.into));
    if let Some(owner) = place.owner {
        path += &format!("&owner={}", encoded(owner));
    }
    if let Some(mode) = place.mode {
        path += &format!("&mode={mode:o}");
    }
    let response = ask(agent, &path, archive).await?;
    check(&path, response).await.map(drop)
}

/// A file of the guest, if it is there and not larger than `max`.
pub async fn read_file(agent: &Agent, path: &str, max: usize) -> Result<Option<Bytes>, AgentError> {
    let query = FileQuery { path: Some(path.into()), username: Some("root".into()), ..FileQuery::default() };
    let query = query.target();
    let request = Request::get(&query).header("host", "guest").body(Full::new(Bytes::new()));
    let response = exchange(agent, request).await?;
    if response.status() == hyper::StatusCode::NOT_FOUND {
        return Ok(None);
    }
    let body = Limited::new(check(&query, response).await?, max).collect().await;
    Ok(Some(body.map_err(AgentError::Answer)?.to_bytes()))
}

/// Packs files of the guest. Pieces go to the sender as they come; nothing follows an error.
pub async fn pack(agent: &Agent, pack: &Pack<'_>, to: mpsc::Sender<Piece>) -> Result<(), AgentError> {
    let mut body = pack_body(agent, pack).await?;
    while let Some(frame) = body.frame().await {
        let piece = match frame {
            Ok(frame) => frame.into_data().unwrap_or_default(),
            Err(error) => {
                // The other side must not take what it has for the whole.
                let _ = to.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
                return Err(error.into());
            }
        };
        if to.send(Ok(piece)).await.is_err() {
            // The reader has stopped, and reports why.
            return Ok(());
        }
    }
    Ok(())
}

/// The archive as it comes.
pub(crate) async fn pack_body(agent: &Agent, pack: &Pack<'_>) -> Result<Incoming, AgentError> {
    let request = json!({ "sources": pack.sources, "destination": pack.destination }).to_string();
    let path = "/forkd/pack";
    check(path, ask(agent, path, Full::new(Bytes::from(request))).await?).await
}

async fn ask<B>(agent: &Agent, path: &str, body: B) -> Result<Response<Incoming>, AgentError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    exchange(agent, Request::post(path).header("host", "guest").body(body)).await
}

pub(crate) async fn exchange<B>(
    agent: &Agent,
    request: Result<Request<B>, hyper::http::Error>,
) -> Result<Response<Incoming>, AgentError>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let request = request.map_err(|error| AgentError::Answer(error.into()))?;
    let stream = agent.guest().connect(ENVD.into()).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // Ends with the response's body.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

pub(crate) async fn check(path: &str, response: Response<Incoming>) -> Result<Incoming, AgentError> {
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let body = Limited::new(response.into_body(), MAX_ERROR).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let path = path.split('?').next().unwrap_or(path).to_owned();
    Err(AgentError::Status { path, status, message: refusal(&body) })
}

/// The body of a request, from a channel.
struct Pieces(mpsc::Receiver<Piece>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answering;

    #[tokio::test]
    async fn pieces_go_in_as_one_body() {
        let (_directory, agent, request) = answering("204 No Content", Vec::new());
        let (sender, receiver) = mpsc::channel(1);
        let send = async {
            for piece in ["one", "two"] {
                sender.send(Ok(Bytes::from(piece))).await.unwrap();
            }
            drop(sender);
        };
        let wanted = Place { into: "/a b", owner: Some("app:app"), mode: Some(0o640) };
        let (placed, ()) = tokio::join!(place(&agent, &wanted, receiver), send);
        placed.unwrap();
        let request = request.await.unwrap();
        assert!(
            request.starts_with("POST /forkd/place?into=/a%20b&owner=app%3Aapp&mode=640 HTTP/1.1"),
            "{request}"
        );
        assert!(request.contains("one") && request.contains("two"), "{request}");
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_the_agent_s_words() {
        let (_directory, agent, _request) =
            answering("400 Bad Request", br#"{"code":400,"message":"there is no user 'x'"}"#.to_vec());
        let (sender, receiver) = mpsc::channel(1);
        drop(sender);
        let wanted = Place { into: "/", owner: Some("x"), mode: None };
        let error = place(&agent, &wanted, receiver).await.unwrap_err().to_string();
        assert!(error.ends_with("there is no user 'x'"), "{error}");
    }

    #[tokio::test]
    async fn a_file_may_be_there_missing_or_too_large() {
        let (_directory, agent, _request) = answering("200 OK", b"root:x:0".to_vec());
        assert_eq!(read_file(&agent, "/etc/passwd", 100).await.unwrap().unwrap(), "root:x:0");
        let (_directory, agent, _request) = answering("404 Not Found", b"{}".to_vec());
        assert_eq!(read_file(&agent, "/etc/passwd", 100).await.unwrap(), None);
        let (_directory, agent, _request) = answering("200 OK", vec![b'x'; 101]);
        assert!(matches!(read_file(&agent, "/etc/passwd", 100).await, Err(AgentError::Answer(_))));
    }

    #[tokio::test]
    async fn what_comes_out_is_handed_on() {
        let (_directory, agent, request) = answering("200 OK", b"archive".to_vec());
        let (sender, mut receiver) = mpsc::channel(8);
        let sources = ["/a".to_owned()];
        pack(&agent, &Pack { sources: &sources, destination: "/to/" }, sender).await.unwrap();
        let mut all = Vec::new();
        while let Some(piece) = receiver.recv().await {
            all.extend_from_slice(&piece.unwrap());
        }
        assert_eq!(all, b"archive");
        let request = request.await.unwrap();
        assert!(request.contains(r#""destination":"/to/""#) && request.contains(r#"["/a"]"#), "{request}");
    }
}
