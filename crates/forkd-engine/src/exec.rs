//! A program in a guest, run to its end through the agent's process service: Connect's streaming protocol, as JSON.
//!
//! ```text
//!   request   one envelope: {"process": {…}, "stdin": false}; what it reads comes with calls of its own
//!   response  envelopes: start, data …, end; then the end of the stream
//!   envelope  flags (1 byte), length (4, big-endian), JSON; flag 2 ends the stream
//! ```

mod interactive;

use std::collections::{BTreeMap, VecDeque};
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

pub use interactive::{Input, Remote, TerminalSize, interact};

use crate::agent::{Agent, AgentError, ENVD};

const PATH: &str = "/process.Process/Start";
const SEND_INPUT: &str = "/process.Process/SendInput";
const CLOSE_STDIN: &str = "/process.Process/CloseStdin";
/// What is sent of an input at once.
const PIECE: usize = 64 << 10;
const HEADER: usize = 5;
const END: u8 = 2;
/// The agent sends chunks of output far smaller than this.
const MAX_MESSAGE: usize = 4 << 20;
const MAX_ERROR: usize = 64 << 10;
/// How long a guest may say nothing at all: it sends signs of life ten times as often, but an emulated one may be slow.
const SILENCE: Duration = Duration::from_secs(300);
const KEEPALIVE_SECONDS: &str = "30";

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program<'a> {
    /// The program and its arguments.
    pub arguments: &'a [String],
    pub env: &'a BTreeMap<String, String>,
    /// The guest's own if it is empty.
    pub workdir: &'a str,
    /// Without one, the agent's default user.
    pub user: Option<&'a str>,
    /// What it reads. Without it, nothing.
    pub stdin: Option<Bytes>,
    /// The agent kills it when it takes longer, whether or not anybody listens.
    pub limit: Option<Duration>,
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

impl Ended {
    /// As shells say it: 128 and the number of the signal that has ended it.
    pub fn exit_code(&self) -> i32 {
        let Some(signal) = self.status.strip_prefix("signal: ") else { return self.code };
        // The agent's words for it.
        let number = match signal {
            "hangup" => 1,
            "interrupt" => 2,
            "quit" => 3,
            "illegal instruction" => 4,
            "trace/breakpoint trap" => 5,
            "aborted" => 6,
            "bus error" => 7,
            "floating point exception" => 8,
            "killed" => 9,
            "user defined signal 1" => 10,
            "segmentation fault" => 11,
            "user defined signal 2" => 12,
            "broken pipe" => 13,
            "alarm clock" => 14,
            "terminated" => 15,
            "CPU time limit exceeded" => 24,
            "file size limit exceeded" => 25,
            "bad system call" => 31,
            other => other.parse().ok().filter(|number| (1..=64).contains(number)).unwrap_or(0),
        };
        128 + number
    }
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
    start: Option<Started>,
    data: Option<Data>,
    end: Option<End>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Started {
    pid: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    stdout: Option<String>,
    stderr: Option<String>,
    pty: Option<String>,
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
    code: String,
    message: String,
}

/// What a program that runs tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Started { pid: u32 },
    Output(Stream, Bytes),
    Ended(Ended),
}

/// A program that runs. Dropped, nobody listens to it any more; it goes on.
#[derive(Debug)]
pub struct Running {
    agent: Agent,
    body: hyper::body::Incoming,
    decoder: Decoder,
    told: VecDeque<Told>,
    ended: Option<Ended>,
    stdin: Option<Bytes>,
    _connection: AbortOnDrop<hyper::Result<()>>,
    _feeding: Option<AbortOnDrop<()>>,
}

/// Runs a program to its end, whatever that takes. Output is handed on as it comes.
pub async fn exec(
    agent: &Agent,
    program: &Program<'_>,
    mut output: impl FnMut(Stream, &[u8]),
) -> Result<Ended, ExecError> {
    let mut running = start(agent, program).await?;
    loop {
        match running.next().await? {
            Told::Started { .. } => {}
            Told::Output(stream, bytes) => output(stream, &bytes),
            Told::Ended(ended) => return Ok(ended),
        }
    }
}

/// Starts a program, which is then read.
pub async fn start(agent: &Agent, program: &Program<'_>) -> Result<Running, ExecError> {
    forkd_proto::passes!();
    let mut running = begin(agent, program, json!({ "stdin": program.stdin.is_some() })).await?;
    running.stdin = program.stdin.clone();
    Ok(running)
}

/// Starts a program, with what is said about its input besides.
async fn begin(
    agent: &Agent,
    program: &Program<'_>,
    mut request: serde_json::Value,
) -> Result<Running, ExecError> {
    let (command, arguments) =
        program.arguments.split_first().ok_or_else(|| ExecError::Refused("there is no program".into()))?;
    request["process"] =
        json!({ "cmd": command, "args": arguments, "envs": program.env, "cwd": program.workdir });
    let stream = agent.guest().connect(ENVD).await.map_err(AgentError::from)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(AgentError::from)?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let mut head = Request::post(PATH)
        .header("host", "guest")
        .header("content-type", "application/connect+json")
        .header("connect-protocol-version", "1")
        .header("keepalive-ping-interval", KEEPALIVE_SECONDS);
    if let Some(user) = program.user {
        head = head.header("authorization", format!("Basic {}", STANDARD.encode(format!("{user}:"))));
    }
    if let Some(limit) = program.limit {
        head = head.header("connect-timeout-ms", limit.as_millis().to_string());
    }
    let request =
        head.body(Full::new(envelope(&request))).map_err(|error| ExecError::Protocol(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(AgentError::from)?;
    if !response.status().is_success() {
        let body = Limited::new(response.into_body(), MAX_ERROR).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        return Err(ExecError::Refused(refusal(&body)));
    }
    Ok(Running {
        agent: agent.clone(),
        body: response.into_body(),
        decoder: Decoder::default(),
        told: VecDeque::new(),
        ended: None,
        stdin: None,
        _connection: connection,
        _feeding: None,
    })
}

impl Running {
    /// What it tells next. After its end, there is nothing more to ask for.
    pub async fn next(&mut self) -> Result<Told, ExecError> {
        loop {
            if let Some(told) = self.told.pop_front() {
                return Ok(told);
            }
            if let Some((flags, payload)) = self.decoder.next()? {
                if flags & END != 0 {
                    return finish(&payload, self.ended.take()).map(Told::Ended);
                }
                let message: Message = serde_json::from_slice(&payload)
                    .map_err(|error| ExecError::Protocol(error.to_string()))?;
                self.hear(message.event)?;
                continue;
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            match frame.map_err(|_| ExecError::Silent(SILENCE))? {
                Some(Ok(frame)) => self.decoder.push(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(ExecError::BrokenOff(Some(error))),
                None => return Err(ExecError::BrokenOff(None)),
            }
        }
    }

    fn hear(&mut self, event: Event) -> Result<(), ExecError> {
        if let Some(Started { pid }) = event.start {
            self.told.push_back(Told::Started { pid });
            if let Some(stdin) = self.stdin.take() {
                // Beside the reading: a program may write before it has read.
                self._feeding = Some(AbortOnDrop(tokio::spawn(feed(self.agent.clone(), pid, stdin))));
            }
        }
        if let Some(data) = event.data {
            let output = [(Stream::Output, data.stdout), (Stream::Output, data.pty)];
            for (stream, text) in output.into_iter().chain([(Stream::Error, data.stderr)]) {
                let Some(text) = text else { continue };
                let bytes = STANDARD.decode(text).map_err(|error| ExecError::Protocol(error.to_string()))?;
                self.told.push_back(Told::Output(stream, bytes.into()));
            }
        }
        if let Some(end) = event.end {
            let status = end.status.chars().take(200).collect();
            self.ended = Some(Ended { code: end.exit_code, status });
        }
        Ok(())
    }
}

/// Gives a program what it reads, and the end of it. One that does not read to the end has its reasons.
async fn feed(agent: Agent, pid: u32, stdin: Bytes) {
    for piece in stdin.chunks(PIECE) {
        let request = json!({ "process": { "pid": pid }, "input": { "stdin": STANDARD.encode(piece) } });
        if agent.post::<serde_json::Value>(SEND_INPUT, &request, SILENCE).await.is_err() {
            return;
        }
    }
    let request = json!({ "process": { "pid": pid } });
    let _ = agent.post::<serde_json::Value>(CLOSE_STDIN, &request, SILENCE).await;
}

fn finish(trailer: &[u8], ended: Option<Ended>) -> Result<Ended, ExecError> {
    let trailer: Trailer =
        serde_json::from_slice(trailer).map_err(|error| ExecError::Protocol(error.to_string()))?;
    match (trailer.error, ended) {
        // The agent ends the stream when it kills the program, and tells of the time and not of the end.
        (Some(problem), None) if problem.code == "deadline_exceeded" => {
            Ok(Ended { code: -1, status: "signal: killed".into() })
        }
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

#[derive(Debug)]
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixListener;

    use crate::guest::Guest;
    use crate::testing::{accept, answering};

    fn message(flags: u8, json: &str) -> Vec<u8> {
        let mut bytes = envelope(&serde_json::from_str(json).unwrap()).to_vec();
        bytes[0] = flags;
        bytes
    }

    async fn run(status: &str, body: Vec<u8>) -> (Result<Ended, ExecError>, String, String) {
        let (_directory, agent, request) = answering(status, body);
        let arguments = ["sh".to_owned(), "-c".into(), "x".into()];
        let env = [("A".to_owned(), "1".to_owned())].into();
        let program = Program {
            arguments: &arguments,
            env: &env,
            workdir: "/w",
            user: Some("me"),
            stdin: None,
            limit: Some(Duration::from_millis(1500)),
        };
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
        for part in [
            r#""cmd":"sh""#,
            r#""args":["-c","x"]"#,
            r#""A":"1""#,
            r#""cwd":"/w""#,
            r#""stdin":false"#,
            "authorization: Basic bWU6",
            "connect-timeout-ms: 1500",
        ] {
            assert!(request.contains(part), "{request}");
        }
    }

    #[tokio::test]
    async fn what_a_program_reads_is_sent_in_pieces_while_it_is_listened_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        let agent = tokio::spawn(async move {
            let (mut program, _) = accept(&listener).await;
            program.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await.unwrap();
            program.write_all(&message(0, r#"{"event":{"start":{"pid":7}}}"#)).await.unwrap();
            let mut calls = Vec::new();
            for _ in 0..3 {
                let (mut client, call) = accept(&listener).await;
                client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                calls.push(call);
            }
            let end = message(0, r#"{"event":{"end":{"exitCode":0,"status":"exit status 0"}}}"#);
            program.write_all(&[end, message(2, "{}")].concat()).await.unwrap();
            calls
        });
        let (arguments, env) = (["cat".to_owned()], BTreeMap::new());
        let stdin = Some(Bytes::from(vec![b'x'; PIECE + 1]));
        let program =
            Program { arguments: &arguments, env: &env, workdir: "", user: None, stdin, limit: None };
        let mut running = start(&Agent::new(Guest::new(path)), &program).await.unwrap();
        assert_eq!(running.next().await.unwrap(), Told::Started { pid: 7 });
        assert!(matches!(running.next().await.unwrap(), Told::Ended(Ended { code: 0, .. })));
        let calls = agent.await.unwrap();
        let begin = |call: &String| call.lines().next().unwrap().to_owned();
        assert_eq!(
            calls.iter().map(begin).collect::<Vec<_>>(),
            [SEND_INPUT, SEND_INPUT, CLOSE_STDIN].map(|path| format!("POST {path} HTTP/1.1"))
        );
        assert!(calls[1].contains(&format!(r#""stdin":"{}""#, STANDARD.encode("x"))), "{}", calls[1]);
        assert!(calls.iter().all(|call| call.contains(r#""pid":7"#)));
    }

    #[test]
    fn signals_are_exit_codes_too() {
        let ended = |code, status: &str| Ended { code, status: status.into() }.exit_code();
        assert_eq!(ended(3, "exit status 3"), 3);
        assert_eq!(ended(-1, "signal: killed"), 137);
        assert_eq!(ended(-1, "signal: terminated"), 143);
        assert_eq!(ended(-1, "signal: 34"), 162);
        for lie in ["signal: 2000000000", "signal: -5", "signal: what"] {
            assert_eq!(ended(-1, lie), 128, "{lie}");
        }
    }

    #[tokio::test]
    async fn refusals_and_nonsense_are_told_apart() {
        let refused =
            run("400 Bad Request", br#"{"code":"invalid_argument","message":"no such cwd"}"#.to_vec());
        assert_eq!(refused.await.0.unwrap_err().to_string(), "no such cwd");
        let late = run("200 OK", message(2, r#"{"error":{"code":"internal","message":"died"}}"#));
        assert_eq!(late.await.0.unwrap_err().to_string(), "died");
        let over = run("200 OK", message(2, r#"{"error":{"code":"deadline_exceeded","message":"late"}}"#));
        assert_eq!(over.await.0.unwrap().exit_code(), 137);
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
