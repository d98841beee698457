//! The agent in a guest, asked over a new connection for each request.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::guest::{ConnectError, Guest};

/// The vsock port of the envd protocol, and of forkd's own calls beside it.
pub const ENVD: u32 = 49983;
/// The vsock port of the code interpreter.
pub const INTERPRETER: u32 = 49999;

/// The largest answer to a call of ours. A guest is hostile.
const MAX_ANSWER: usize = 1 << 20;

/// An agent gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the agent's connection")]
    Http(#[from] hyper::Error),
    #[error("a request to the agent cannot be written")]
    Request(#[source] serde_json::Error),
    #[error("the agent's answer is longer than {MAX_ANSWER} bytes, or broke off")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the agent's answer cannot be read")]
    Json(#[source] serde_json::Error),
    #[error("the agent answered {path} with {status}: {message}")]
    Status { path: String, status: StatusCode, message: String },
    #[error("no answer from the agent within {0:?}")]
    Timeout(Duration),
    #[error("the agent is not ready: {0}")]
    NotReady(String),
}

/// One guest's agent.
#[derive(Debug, Clone)]
pub struct Agent {
    guest: Guest,
}

impl Agent {
    pub fn new(guest: Guest) -> Agent {
        Agent { guest }
    }

    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Sends JSON and reads JSON; an answer without a body is `null`.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, AgentError> {
        self.ask(Method::POST, path, || serde_json::to_vec(body), limit).await
    }

    /// The same for a body that is made at the last moment, when the agent already listens. Asks again while the guest has
    /// no listener or loses its connections, as one does that was just forked.
    pub async fn post_when_connected<T: DeserializeOwned>(
        &self,
        path: &str,
        body: impl Fn() -> Result<Vec<u8>, serde_json::Error>,
        limit: Duration,
    ) -> Result<T, AgentError> {
        self.ask_patiently(Method::POST, path, body, limit).await
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, limit: Duration) -> Result<T, AgentError> {
        self.ask(Method::GET, path, || Ok(Vec::new()), limit).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl FnOnce() -> Result<Vec<u8>, serde_json::Error>,
        limit: Duration,
    ) -> Result<T, AgentError> {
        let asked = tokio::time::timeout(limit, self.exchange(method, path, body)).await;
        let (status, body) = asked.map_err(|_| AgentError::Timeout(limit))??;
        if !status.is_success() {
            let message = String::from_utf8_lossy(&body).trim().chars().take(500).collect();
            return Err(AgentError::Status { path: path.into(), status, message });
        }
        let body = if body.is_empty() { &b"null"[..] } else { &body };
        serde_json::from_slice(body).map_err(AgentError::Json)
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: impl FnOnce() -> Result<Vec<u8>, serde_json::Error>,
    ) -> Result<(StatusCode, Bytes), AgentError> {
        let stream = self.guest.connect(ENVD).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the exchange: nothing keeps the sender.
        let connection = tokio::spawn(connection);
        let body = body().map_err(AgentError::Request)?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "guest")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| AgentError::Answer(error.into()))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        connection.abort();
        Ok((status, body.map_err(AgentError::Answer)?.to_bytes()))
    }

    /// Waits until the agent answers at all, however often it must be asked: a guest that boots has no listener yet.
    pub async fn wait_for_answer(&self, limit: Duration) -> Result<(), AgentError> {
        let no_body = || Ok(Vec::new());
        self.ask_patiently::<serde_json::Value>(Method::GET, "/health", no_body, limit).await?;
        Ok(())
    }

    /// Asks until there is an answer, or an error that time does not mend.
    async fn ask_patiently<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: impl Fn() -> Result<Vec<u8>, serde_json::Error>,
        limit: Duration,
    ) -> Result<T, AgentError> {
        let begun = tokio::time::Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            let error = match self.ask(method.clone(), path, &body, limit).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let patient = match &error {
                AgentError::Connect(ConnectError::Refused { .. }) | AgentError::Http(_) => true,
                AgentError::Connect(ConnectError::Socket { source, .. }) => {
                    source.kind() != io::ErrorKind::NotFound
                }
                _ => false,
            };
            if !patient {
                return Err(error);
            }
            if begun.elapsed() > limit {
                return Err(AgentError::Timeout(limit));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}
