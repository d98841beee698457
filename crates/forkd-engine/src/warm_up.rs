//! Warm-up: code that runs in a guest's interpreter before the guest is frozen, so that every fork begins after it.
//!
//! The agent answers with lines of JSON: what the code prints, an error if it fails, and that it has ended.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;

use crate::agent::{Agent, AgentError, INTERPRETER};

const PATH: &str = "/forkd/warm";
/// Output comes in pieces far smaller than this; results may be pictures.
const MAX_LINE: usize = 16 << 20;
/// What is kept of an error of the code's.
const MAX_MESSAGE: usize = 2000;

/// Code for one of the guest's interpreters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarmUp {
    /// As the agent knows it.
    pub language: &'static str,
    pub code: String,
}

#[derive(Debug, thiserror::Error)]
pub enum WarmUpError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the warm-up in {language} failed: {message}")]
    Code { language: &'static str, message: String },
    #[error("the warm-up in {0} broke off")]
    BrokeOff(&'static str),
    #[error("a line of the warm-up's output is longer than {MAX_LINE} bytes, or not what the agent says")]
    Line,
}

#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    name: String,
    #[serde(default)]
    value: String,
}

/// Runs code to its end. What it prints goes to `output`, in pieces.
pub async fn warm_up<F: Future<Output = ()>>(
    agent: &Agent,
    wanted: &WarmUp,
    limit: Duration,
    output: impl Fn(String) -> F,
) -> Result<(), WarmUpError> {
    let done = run(agent, wanted, output);
    tokio::time::timeout(limit, done).await.unwrap_or(Err(AgentError::Timeout(limit).into()))
}

async fn run<F: Future<Output = ()>>(
    agent: &Agent,
    wanted: &WarmUp,
    output: impl Fn(String) -> F,
) -> Result<(), WarmUpError> {
    let stream = agent.guest().connect(INTERPRETER).await.map_err(AgentError::from)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(AgentError::from)?;
    let _connection = AbortOnDrop(tokio::spawn(connection).abort_handle());
    let body = json!({ "language": wanted.language, "code": wanted.code }).to_string();
    let request = Request::post(PATH)
        .header("host", "guest")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| AgentError::Answer(error.into()))?;
    let response = sender.send_request(request).await.map_err(AgentError::from)?;
    let status = response.status();
    if !status.is_success() {
        return Err(AgentError::Status { path: PATH.into(), status, message: String::new() }.into());
    }
    let mut body = response.into_body();
    let mut lines = Lines::default();
    let mut failed = None;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(AgentError::from)?.into_data() else { continue };
        lines.add(&data)?;
        while let Some(line) = lines.next()? {
            match line.kind.as_str() {
                "stdout" | "stderr" => output(line.text).await,
                "error" => failed = Some(format!("{}: {}", line.name, line.value)),
                "end_of_execution" => {
                    let Some(message) = failed else { return Ok(()) };
                    let message = message.chars().take(MAX_MESSAGE).collect();
                    return Err(WarmUpError::Code { language: wanted.language, message });
                }
                _ => {}
            }
        }
    }
    Err(WarmUpError::BrokeOff(wanted.language))
}

/// Bytes that come in any pieces, as lines.
#[derive(Default)]
struct Lines {
    bytes: BytesMut,
    /// How many of them are known to have no end of a line.
    seen: usize,
}

impl Lines {
    fn add(&mut self, data: &[u8]) -> Result<(), WarmUpError> {
        if self.bytes.len() + data.len() > MAX_LINE {
            return Err(WarmUpError::Line);
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Line>, WarmUpError> {
        let new = self.bytes.get(self.seen..).unwrap_or_default();
        let Some(end) = new.iter().position(|byte| *byte == b'\n') else {
            self.seen = self.bytes.len();
            return Ok(None);
        };
        let line = self.bytes.split_to(self.seen + end + 1);
        self.seen = 0;
        serde_json::from_slice(&line).map(Some).map_err(|_| WarmUpError::Line)
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;
    use crate::guest::Guest;

    const OUT: &str = "{\"type\":\"stdout\",\"text\":\"hello\"}\n";
    const END: &str = "{\"type\":\"end_of_execution\"}\n";

    /// What comes of a guest that answers with these pieces and closes.
    async fn answered_with(pieces: &[&str]) -> (Result<(), WarmUpError>, String) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        let pieces: Vec<String> = pieces.iter().map(|&piece| piece.to_owned()).collect();
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 4096];
            assert!(client.read(&mut bytes).await.unwrap() > 0);
            client.write_all(b"OK 1\n").await.unwrap();
            assert!(client.read(&mut bytes).await.unwrap() > 0);
            client.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await.unwrap();
            for piece in pieces {
                // One that has heard enough hangs up.
                let _ = client.write_all(piece.as_bytes()).await;
            }
        });
        let agent = Agent::new(Guest::new(path));
        let wanted = WarmUp { language: "python", code: "1".into() };
        let printed = Mutex::new(String::new());
        let done = warm_up(&agent, &wanted, Duration::from_secs(10), |text| {
            printed.lock().unwrap().push_str(&text);
            std::future::ready(())
        });
        (done.await, printed.into_inner().unwrap())
    }

    #[tokio::test]
    async fn output_is_told_and_the_end_is_the_end() {
        let (head, tail) = OUT.split_at(10);
        let (done, printed) = answered_with(&[head, tail, OUT, END]).await;
        done.unwrap();
        assert_eq!(printed, "hellohello");
    }

    #[tokio::test]
    async fn code_that_fails_is_said_with_its_words() {
        let error = "{\"type\":\"error\",\"name\":\"ValueError\",\"value\":\"no\",\"traceback\":\"\"}\n";
        let (done, _) = answered_with(&[error, END]).await;
        assert_eq!(done.unwrap_err().to_string(), "the warm-up in python failed: ValueError: no");
    }

    #[tokio::test]
    async fn a_guest_that_says_nonsense_or_breaks_off_is_refused() {
        assert!(matches!(answered_with(&["nonsense\n"]).await.0, Err(WarmUpError::Line)));
        assert!(matches!(answered_with(&[OUT]).await.0, Err(WarmUpError::BrokeOff("python"))));
        let endless = "x".repeat(1 << 20);
        let pieces = vec![endless.as_str(); 17];
        assert!(matches!(answered_with(&pieces).await.0, Err(WarmUpError::Line)));
    }
}
