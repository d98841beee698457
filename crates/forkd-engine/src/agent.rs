//! The agent in a guest, asked over a new connection for each request, or over one for several.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use forkd_envd::HEALTH;
use forkd_envd::port::ENVD;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;

use crate::guest::{ConnectError, Guest};

/// The largest answer to a call of ours. A guest is hostile.
const MAX_ANSWER: usize = 1 << 20;

/// An agent gave no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the connection to the agent failed")]
    Http(#[from] hyper::Error),
    #[error("the connection to the agent failed")]
    Line(#[source] io::Error),
    #[error("cannot encode a request to the agent")]
    Request(#[source] serde_json::Error),
    #[error("the agent's answer is longer than {MAX_ANSWER} bytes or incomplete")]
    Answer(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("cannot parse the agent's answer")]
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
        within(limit, async { self.connect().await?.post(path, body).await }).await
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str, limit: Duration) -> Result<T, AgentError> {
        within(limit, async { self.connect().await?.get(path).await }).await
    }

    /// A connection for several requests, one after the other.
    pub async fn connect(&self) -> Result<Connection, AgentError> {
        let stream = self.guest.connect(ENVD.into()).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Connection { sender, task: tokio::spawn(connection).abort_handle() })
    }

    /// Waits until the agent answers at all, however often it must be asked.
    pub async fn wait_for_answer(&self, limit: Duration) -> Result<(), AgentError> {
        self.patiently(limit, || self.get::<serde_json::Value>(HEALTH, limit)).await?;
        Ok(())
    }

    /// Asks until there is an answer, or an error that time does not mend: a guest that boots has no listener yet, and one
    /// that was forked loses its connections.
    pub(crate) async fn patiently<T, F: Future<Output = Result<T, AgentError>>>(
        &self,
        limit: Duration,
        ask: impl Fn() -> F,
    ) -> Result<T, AgentError> {
        let begun = tokio::time::Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            let error = match ask().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let patient = match &error {
                AgentError::Connect(ConnectError::Refused { .. })
                | AgentError::Http(_)
                | AgentError::Line(_) => true,
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

async fn within<T>(
    limit: Duration,
    asked: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, AgentError> {
    tokio::time::timeout(limit, asked).await.unwrap_or(Err(AgentError::Timeout(limit)))
}

/// One connection to an agent. It ends with this value.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    task: AbortHandle,
}

impl Connection {
    pub async fn get<T: DeserializeOwned>(&mut self, path: &str) -> Result<T, AgentError> {
        self.ask(Method::GET, path, Vec::new()).await
    }

    pub async fn post<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, AgentError> {
        self.ask(Method::POST, path, serde_json::to_vec(body).map_err(AgentError::Request)?).await
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<T, AgentError> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "guest")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| AgentError::Answer(error.into()))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(AgentError::Answer)?.to_bytes();
        if !status.is_success() {
            let message = String::from_utf8_lossy(&body).trim().chars().take(500).collect();
            return Err(AgentError::Status { path: path.into(), status, message });
        }
        let body = if body.is_empty() { &b"null"[..] } else { &body };
        serde_json::from_slice(body).map_err(AgentError::Json)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    /// An agent whose first `deaf` connections are closed, and whose others answer every request with this.
    fn answering(deaf: usize, answer: &'static str) -> (tempfile::TempDir, Agent) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            let mut seen = 0;
            while let Ok((mut client, _)) = listener.accept().await {
                seen += 1;
                if seen <= deaf {
                    continue;
                }
                tokio::spawn(async move {
                    let mut bytes = [0; 4096];
                    assert!(client.read(&mut bytes).await.unwrap() > 0);
                    client.write_all(b"OK 1\n").await.unwrap();
                    while client.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                        client.write_all(answer.as_bytes()).await.unwrap();
                    }
                });
            }
        });
        (directory, Agent::new(Guest::new(path)))
    }

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_connection_carries_several_requests() {
        let (_directory, agent) = answering(0, "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}");
        let mut connection = agent.connect().await.unwrap();
        for _ in 0..3 {
            assert_eq!(connection.get::<Value>("/").await.unwrap(), json!({ "a": 1 }));
        }
    }

    #[tokio::test]
    async fn a_guest_that_refuses_is_asked_again() {
        let (_directory, agent) = answering(3, "HTTP/1.1 204 No Content\r\n\r\n");
        assert!(matches!(agent.get::<Value>("/", LIMIT).await, Err(AgentError::Connect(_))));
        agent.wait_for_answer(LIMIT).await.unwrap();
    }

    #[tokio::test]
    async fn what_an_agent_refuses_is_said_and_not_asked_again() {
        let (_directory, agent) = answering(0, "HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\n\r\nno!\n");
        let error = agent.wait_for_answer(LIMIT).await.unwrap_err();
        assert_eq!(error.to_string(), "the agent answered /health with 409 Conflict: no!");
    }
}
