//! A program in a guest, run to its end through the agent's process service: Connect's streaming protocol, as JSON.
//!
//! ```text
//!   request   one envelope: {"process": {…}, "stdin": false}
//!   response  envelopes: start, data …, end; then the end of the stream
//!   envelope  flags (1 byte), length (4, big-endian), JSON; flag 2 ends the stream
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde_json::json;

use crate::agent::{Agent, AgentError, ENVD};

const PATH: &str = "/process.Process/Start";
const HEADER: usize = 5;
const END: u8 = 2;
/// The agent sends chunks of output far smaller than this.
const MAX_MESSAGE: usize = 4 << 20;
const MAX_ERROR: usize = 64 << 10;
/// How long a guest may say nothing at all: it sends signs of life ten times as often, but an emulated one may be slow.
const SILENCE: Duration = Duration::from_secs(300);
const KEEPALIVE_SECONDS: &str = "30";

/// What to run. Whoever the agent's default user is runs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program<'a> {
    /// The program and its arguments.
    pub arguments: &'a [String],
    pub env: &'a BTreeMap<String, String>,
    pub workdir: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// `-1` if a signal ended it.
    pub code: i32,
    /// `exit status 3`, `signal: killed`.
    pub status: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("{0}")]
    Refused(String),
    #[error("the agent sent something that is no part of the protocol: {0}")]
    Protocol(String),
    #[error("the guest has said nothing for {0:?}")]
    Silent(Duration),
    #[error("the connection to the guest broke off")]
    BrokenOff(#[source] Option<hyper::Error>),
}

#[derive(Debug, Deserialize)]
struct Message {
    event: Event,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    data: Option<Data>,
    end: Option<End>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct End {
    exit_code: i32,
    status: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Trailer {
    error: Option<Problem>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    message: String,
}

/// Runs a program to its end, whatever that takes. Output is handed on as it comes.
pub async fn exec(
    agent: &Agent,
    program: &Program<'_>,
    mut output: impl FnMut(Stream, &[u8]),
) -> Result<Ended, ExecError> {
    let (command, arguments) =
        program.arguments.split_first().ok_or_else(|| ExecError::Refused("there is no program".into()))?;
    let request = json!({
        "process": { "cmd": command, "args": arguments, "envs": program.env, "cwd": program.workdir },
        "stdin": false,
    });
    let stream = agent.guest().connect(ENVD).await.map_err(AgentError::from)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(AgentError::from)?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let request = Request::post(PATH)
        .header("host", "guest")
        .header("content-type", "application/connect+json")
        .header("connect-protocol-version", "1")
        .header("keepalive-ping-interval", KEEPALIVE_SECONDS)
        .body(Full::new(envelope(&request)))
        .map_err(|error| ExecError::Protocol(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(AgentError::from)?;
    if !response.status().is_success() {
        let body = Limited::new(response.into_body(), MAX_ERROR).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        return Err(ExecError::Refused(refusal(&body)));
    }
    let mut body = response.into_body();
    let mut decoder = Decoder::default();
    let mut ended = None;
    loop {
        while let Some((flags, payload)) = decoder.next()? {
            if flags & END != 0 {
                drop(connection);
                return finish(&payload, ended);
            }
            let message: Message =
                serde_json::from_slice(&payload).map_err(|error| ExecError::Protocol(error.to_string()))?;
            hand_on(message.event, &mut output, &mut ended)?;
        }
        let frame = tokio::time::timeout(SILENCE, body.frame()).await;
        match frame.map_err(|_| ExecError::Silent(SILENCE))? {
            Some(Ok(frame)) => decoder.push(&frame.into_data().unwrap_or_default()),
            Some(Err(error)) => return Err(ExecError::BrokenOff(Some(error))),
            None => return Err(ExecError::BrokenOff(None)),
        }
    }
}

fn hand_on(
    event: Event,
    output: &mut impl FnMut(Stream, &[u8]),
    ended: &mut Option<Ended>,
) -> Result<(), ExecError> {
    if let Some(data) = event.data {
        for (stream, text) in [(Stream::Output, data.stdout), (Stream::Error, data.stderr)] {
            let Some(text) = text else { continue };
            let bytes = STANDARD.decode(text).map_err(|error| ExecError::Protocol(error.to_string()))?;
            output(stream, &bytes);
        }
    }
    if let Some(end) = event.end {
        let status = end.status.chars().take(200).collect();
        *ended = Some(Ended { code: end.exit_code, status });
    }
    Ok(())
}

fn finish(trailer: &[u8], ended: Option<Ended>) -> Result<Ended, ExecError> {
    let trailer: Trailer =
        serde_json::from_slice(trailer).map_err(|error| ExecError::Protocol(error.to_string()))?;
    match (trailer.error, ended) {
        (Some(problem), _) => Err(ExecError::Refused(shown(&problem.message))),
        (None, Some(ended)) => Ok(ended),
        (None, None) => Err(ExecError::Protocol("the stream ended before the program".into())),
    }
}

fn refusal(body: &[u8]) -> String {
    match serde_json::from_slice::<Problem>(body) {
        Ok(problem) if !problem.message.is_empty() => shown(&problem.message),
        _ => shown(&String::from_utf8_lossy(body)),
    }
}

fn shown(text: &str) -> String {
    text.trim().chars().take(500).collect()
}

fn envelope(message: &serde_json::Value) -> Bytes {
    let payload = message.to_string();
    let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    [&[0][..], &length.to_be_bytes(), payload.as_bytes()].concat().into()
}

#[derive(Debug, Default)]
struct Decoder(BytesMut);

impl Decoder {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole envelope: its flags and its payload.
    fn next(&mut self) -> Result<Option<(u8, Bytes)>, ExecError> {
        let Some([flags, length @ ..]) = self.0.first_chunk::<HEADER>() else { return Ok(None) };
        let (flags, length) = (*flags, u32::from_be_bytes(*length));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE {
            return Err(ExecError::Protocol(format!("a message of {length} bytes")));
        }
        if self.0.len() < HEADER + length {
            return Ok(None);
        }
        self.0.advance(HEADER);
        Ok(Some((flags, self.0.split_to(length).freeze())))
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answering;

    fn message(flags: u8, json: &str) -> Vec<u8> {
        let mut bytes = envelope(&serde_json::from_str(json).unwrap()).to_vec();
        bytes[0] = flags;
        bytes
    }

    async fn run(status: &str, body: Vec<u8>) -> (Result<Ended, ExecError>, String, String) {
        let (_directory, agent, request) = answering(status, body);
        let arguments = ["sh".to_owned(), "-c".into(), "x".into()];
        let env = [("A".to_owned(), "1".to_owned())].into();
        let program = Program { arguments: &arguments, env: &env, workdir: "/w" };
        let mut seen = String::new();
        let ended = exec(&agent, &program, |stream, bytes| {
            seen += &format!("{stream:?} {};", String::from_utf8_lossy(bytes));
        });
        (ended.await, seen, request.await.unwrap())
    }

    #[tokio::test]
    async fn output_is_handed_on_and_the_end_is_told() {
        let body = [
            message(0, r#"{"event":{"start":{"pid":7}}}"#),
            message(0, r#"{"event":{"data":{"stdout":"b25l"}}}"#),
            message(0, r#"{"event":{"keepalive":{}}}"#),
            message(0, r#"{"event":{"data":{"stderr":"dHdv"}}}"#),
            message(0, r#"{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3"}}}"#),
            message(2, "{}"),
        ];
        let (ended, seen, request) = run("200 OK", body.concat()).await;
        assert_eq!(ended.unwrap(), Ended { code: 3, status: "exit status 3".into() });
        assert_eq!(seen, "Output one;Error two;");
        assert!(request.starts_with("POST /process.Process/Start"), "{request}");
        for part in
            [r#""cmd":"sh""#, r#""args":["-c","x"]"#, r#""A":"1""#, r#""cwd":"/w""#, r#""stdin":false"#]
        {
            assert!(request.contains(part), "{request}");
        }
    }

    #[tokio::test]
    async fn refusals_and_nonsense_are_told_apart() {
        let refused =
            run("400 Bad Request", br#"{"code":"invalid_argument","message":"no such cwd"}"#.to_vec());
        assert_eq!(refused.await.0.unwrap_err().to_string(), "no such cwd");
        let late = run("200 OK", message(2, r#"{"error":{"code":"internal","message":"died"}}"#));
        assert_eq!(late.await.0.unwrap_err().to_string(), "died");
        let cut = run("200 OK", message(0, r#"{"event":{}}"#)).await.0;
        assert!(matches!(cut, Err(ExecError::BrokenOff(_))), "{cut:?}");
        let early = run("200 OK", message(2, "{}")).await.0;
        assert!(matches!(early, Err(ExecError::Protocol(_))), "{early:?}");
        let huge = run("200 OK", vec![0, 0xff, 0xff, 0xff, 0xff]).await.0;
        assert!(matches!(huge, Err(ExecError::Protocol(_))), "{huge:?}");
        let garbled = run("200 OK", message(0, r#"{"event":{"data":{"stdout":"!"}}}"#)).await.0;
        assert!(matches!(garbled, Err(ExecError::Protocol(_))), "{garbled:?}");
    }
}
