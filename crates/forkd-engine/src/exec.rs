//! A program in a guest, run to its end through the agent's process service: a stream of Connect's protocol.
//!
//! ```text
//!   request   one message: what to start; what it reads comes with calls of its own
//!   response  messages: start, data …, end; then the end of the stream
//! ```

mod interactive;
mod processes;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forkd_api::data::Data;
use forkd_api::exec::ExecEvent;
use forkd_envd::Exit;
use forkd_envd::caller::authorization;
use forkd_envd::connect::{
    Code, Decoder, Frame, KEEPALIVE_HEADER, STREAM_TYPE, TIMEOUT_HEADER, VERSION, VERSION_HEADER, message,
    outcome, refusal,
};
use forkd_envd::port::ENVD;
use forkd_envd::process::{
    CLOSE_STDIN, CONNECT, EventMessage, ProcessConfig, ProcessEvent, ProcessInput, Pty, SEND_INPUT, START,
    SelectRequest, Selector, SendInputRequest, StartRequest, Started,
};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;

pub use interactive::{Input, Remote, interact};
pub use processes::{connect, detach, list};

use crate::agent::{Agent, AgentError};

/// What is sent of an input at once.
const PIECE: usize = 64 << 10;
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

#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("{0}")]
    Refused(String),
    /// Not one that a client has started, or no longer.
    #[error("{0}")]
    NoProcess(String),
    #[error("unexpected message of the agent: {0}")]
    Protocol(String),
    #[error("no message from the guest for {0:?}")]
    Silent(Duration),
    #[error("the connection to the guest broke")]
    BrokenOff(#[source] Option<hyper::Error>),
}

/// A running program. When dropped, its output is not read any more; the program keeps running.
#[derive(Debug)]
pub struct Running {
    agent: Agent,
    body: hyper::body::Incoming,
    decoder: Decoder,
    /// What was read and not yet asked for.
    events: VecDeque<ExecEvent>,
    exit: Option<Exit>,
    begun: Instant,
    limit: Option<Duration>,
    stdin: Option<Bytes>,
    _connection: AbortOnDrop<hyper::Result<()>>,
    _feeding: Option<AbortOnDrop<()>>,
}

/// Runs a program to its end, whatever that takes. Output of both streams is handed on as it comes.
pub async fn exec(
    agent: &Agent,
    program: &Program<'_>,
    mut output: impl FnMut(&[u8]),
) -> Result<Exit, ExecError> {
    let mut running = start(agent, program).await?;
    loop {
        for event in running.events.drain(..) {
            if let ExecEvent::Stdout(Data(bytes)) | ExecEvent::Stderr(Data(bytes)) = event {
                output(&bytes);
            }
        }
        if let Some(exit) = running.read().await? {
            return Ok(exit);
        }
    }
}

/// Starts a program, which is then read.
pub async fn start(agent: &Agent, program: &Program<'_>) -> Result<Running, ExecError> {
    forkd_proto::passes!();
    let mut running = begin(agent, program, program.stdin.is_some(), None).await?;
    running.stdin = program.stdin.clone();
    Ok(running)
}

/// Starts a program: whether its input stays open, and its terminal, if it has one.
async fn begin(
    agent: &Agent,
    program: &Program<'_>,
    stdin: bool,
    pty: Option<Pty>,
) -> Result<Running, ExecError> {
    let begun = Instant::now();
    let (command, arguments) =
        program.arguments.split_first().ok_or_else(|| ExecError::Refused("missing program".into()))?;
    let process = ProcessConfig {
        cmd: command.clone(),
        args: arguments.to_vec(),
        envs: program.env.clone(),
        cwd: Some(program.workdir.into()),
    };
    let request = StartRequest { process, pty, tag: None, stdin: Some(stdin) };
    let mut running = open(agent, START, &request, program.user, program.limit).await?;
    running.begun = begun;
    Ok(running)
}

/// Opens a stream of a program's events.
async fn open(
    agent: &Agent,
    path: &str,
    request: &impl Serialize,
    user: Option<&str>,
    limit: Option<Duration>,
) -> Result<Running, ExecError> {
    let request = serde_json::to_vec(request).map_err(AgentError::Request)?;
    let stream = agent.guest().connect(ENVD.into()).await.map_err(AgentError::from)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(AgentError::from)?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    let mut head = Request::post(path)
        .header("host", "guest")
        .header("content-type", STREAM_TYPE)
        .header(VERSION_HEADER, VERSION)
        .header(KEEPALIVE_HEADER, KEEPALIVE_SECONDS);
    if let Some(user) = user {
        head = head.header("authorization", authorization(user));
    }
    if let Some(limit) = limit {
        head = head.header(TIMEOUT_HEADER, limit.as_millis().to_string());
    }
    let request =
        head.body(Full::new(message(&request))).map_err(|error| ExecError::Protocol(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(AgentError::from)?;
    let status = response.status();
    if !status.is_success() {
        let body = Limited::new(response.into_body(), MAX_ERROR).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let message = refusal(&body);
        return Err(match (path, status) {
            (CONNECT, StatusCode::NOT_FOUND) => ExecError::NoProcess(message),
            _ => ExecError::Refused(message),
        });
    }
    Ok(Running {
        agent: agent.clone(),
        body: response.into_body(),
        decoder: Decoder::new(MAX_MESSAGE),
        events: VecDeque::new(),
        exit: None,
        begun: Instant::now(),
        limit,
        stdin: None,
        _connection: connection,
        _feeding: None,
    })
}

impl Running {
    /// What it does next: `Started`, `Stdout`, `Stderr`, and `Exited` as the last. A terminal's output is `Stdout`.
    pub async fn next(&mut self) -> Result<ExecEvent, ExecError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(exit) = self.read().await? {
                return Ok(ExecEvent::Exited { exit_code: exit.code(), timed_out: self.timed_out(exit) });
            }
        }
    }

    /// The agent kills what takes too long, and says only that it was killed.
    fn timed_out(&self, exit: Exit) -> bool {
        matches!(exit, Exit::Signal(_)) && self.limit.is_some_and(|limit| self.begun.elapsed() >= limit)
    }

    /// Reads one message, whose events are kept. How the program ended, at the end of the stream.
    async fn read(&mut self) -> Result<Option<Exit>, ExecError> {
        let wrong = |error: &dyn std::error::Error| ExecError::Protocol(error.to_string());
        loop {
            match self.decoder.next_frame().map_err(|error| wrong(&error))? {
                Some(Frame::End(payload)) => return finish(&payload, self.exit).map(Some),
                Some(Frame::Message(payload)) => {
                    let message: EventMessage =
                        serde_json::from_slice(&payload).map_err(|error| wrong(&error))?;
                    self.hear(message.event);
                    return Ok(None);
                }
                None => {}
            }
            let frame = tokio::time::timeout(SILENCE, self.body.frame()).await;
            match frame.map_err(|_| ExecError::Silent(SILENCE))? {
                Some(Ok(frame)) => self.decoder.push(&frame.into_data().unwrap_or_default()),
                Some(Err(error)) => return Err(ExecError::BrokenOff(Some(error))),
                None => return Err(ExecError::BrokenOff(None)),
            }
        }
    }

    fn hear(&mut self, event: ProcessEvent) {
        if let Some(Started { pid }) = event.start {
            self.events.push_back(ExecEvent::Started { pid });
            if let Some(stdin) = self.stdin.take() {
                // Beside the reading: a program may write before it has read.
                self._feeding = Some(AbortOnDrop(tokio::spawn(feed(self.agent.clone(), pid, stdin))));
            }
        }
        if let Some(data) = event.data {
            let stdout =
                [data.stdout, data.pty].into_iter().flatten().map(|bytes| ExecEvent::Stdout(Data(bytes.0)));
            self.events.extend(stdout.chain(data.stderr.map(|bytes| ExecEvent::Stderr(Data(bytes.0)))));
        }
        if let Some(end) = event.end {
            self.exit = Some(end.exit());
        }
    }
}

/// Gives a program what it reads, and the end of it. One that does not read to the end has its reasons.
async fn feed(agent: Agent, pid: u32, mut stdin: Bytes) {
    while !stdin.is_empty() {
        let input = ProcessInput::stdin(stdin.split_to(stdin.len().min(PIECE)));
        let request = SendInputRequest { process: Selector::pid(pid), input };
        if agent.post::<serde_json::Value>(SEND_INPUT, &request, SILENCE).await.is_err() {
            return;
        }
    }
    let request = SelectRequest { process: Selector::pid(pid) };
    let _ = agent.post::<serde_json::Value>(CLOSE_STDIN, &request, SILENCE).await;
}

fn finish(trailer: &[u8], ended: Option<Exit>) -> Result<Exit, ExecError> {
    match (outcome(trailer).map_err(|error| ExecError::Protocol(error.to_string()))?, ended) {
        // The agent ends the stream when it kills the program, and tells of the time and not of the end.
        (Err(error), None) if error.code == Code::DeadlineExceeded => Ok(Exit::killed()),
        (Err(error), _) => Err(ExecError::Refused(shown(&error.message))),
        (Ok(()), Some(ended)) => Ok(ended),
        (Ok(()), None) => Err(ExecError::Protocol("the stream ended before the program".into())),
    }
}

fn shown(text: &str) -> String {
    text.trim().chars().take(500).collect()
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

    /// An envelope as it is on the wire.
    fn envelope(flags: u8, json: &str) -> Vec<u8> {
        let length = u32::try_from(json.len()).unwrap().to_be_bytes();
        [&[flags][..], &length, json.as_bytes()].concat()
    }

    async fn run(status: &str, body: Vec<u8>) -> (Result<Exit, ExecError>, String, String) {
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
        let ended = exec(&agent, &program, |bytes| seen += &format!("{};", String::from_utf8_lossy(bytes)));
        (ended.await, seen, request.await.unwrap())
    }

    #[tokio::test]
    async fn output_is_handed_on_and_the_end_is_told() {
        let body = [
            envelope(0, r#"{"event":{"start":{"pid":7}}}"#),
            envelope(0, r#"{"event":{"data":{"stdout":"b25l"}}}"#),
            envelope(0, r#"{"event":{"keepalive":{}}}"#),
            envelope(0, r#"{"event":{"data":{"stderr":"dHdv"}}}"#),
            envelope(0, r#"{"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3"}}}"#),
            envelope(2, "{}"),
        ];
        let (ended, seen, request) = run("200 OK", body.concat()).await;
        assert_eq!(ended.unwrap(), Exit::Code(3));
        assert_eq!(seen, "one;two;");
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
            program.write_all(&envelope(0, r#"{"event":{"start":{"pid":7}}}"#)).await.unwrap();
            let mut calls = Vec::new();
            for _ in 0..3 {
                let (mut client, call) = accept(&listener).await;
                client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                calls.push(call);
            }
            let end = envelope(0, r#"{"event":{"end":{"exitCode":0,"status":"exit status 0"}}}"#);
            program.write_all(&[end, envelope(2, "{}")].concat()).await.unwrap();
            calls
        });
        let (arguments, env) = (["cat".to_owned()], BTreeMap::new());
        let stdin = Some(Bytes::from(vec![b'x'; PIECE + 1]));
        let program =
            Program { arguments: &arguments, env: &env, workdir: "", user: None, stdin, limit: None };
        let mut running = start(&Agent::new(Guest::new(path)), &program).await.unwrap();
        assert_eq!(running.next().await.unwrap(), ExecEvent::Started { pid: 7 });
        let exited = ExecEvent::Exited { exit_code: 0, timed_out: false };
        assert_eq!(running.next().await.unwrap(), exited);
        let calls = agent.await.unwrap();
        let begin = |call: &String| call.lines().next().unwrap().to_owned();
        assert_eq!(
            calls.iter().map(begin).collect::<Vec<_>>(),
            [SEND_INPUT, SEND_INPUT, CLOSE_STDIN].map(|path| format!("POST {path} HTTP/1.1"))
        );
        assert!(calls[1].contains(&format!(r#""stdin":"{}""#, "eA==")), "{}", calls[1]);
        assert!(calls.iter().all(|call| call.contains(r#""pid":7"#)));
    }

    #[tokio::test]
    async fn a_program_that_was_killed_at_its_limit_has_timed_out() {
        let body = [
            envelope(0, r#"{"event":{"start":{"pid":7}}}"#),
            envelope(0, r#"{"event":{"data":{"stderr":"dHdv"}}}"#),
            envelope(0, r#"{"event":{"end":{"exitCode":-1,"status":"signal: killed"}}}"#),
            envelope(2, "{}"),
        ];
        for (limit, timed_out) in
            [(Some(Duration::ZERO), true), (Some(Duration::from_secs(600)), false), (None, false)]
        {
            let (_directory, agent, _request) = answering("200 OK", body.concat());
            let (arguments, env) = (["sh".to_owned()], BTreeMap::new());
            let program =
                Program { arguments: &arguments, env: &env, workdir: "", user: None, stdin: None, limit };
            let mut running = start(&agent, &program).await.unwrap();
            let mut events = Vec::new();
            while !events.last().is_some_and(ExecEvent::is_last) {
                events.push(running.next().await.unwrap());
            }
            let exited = ExecEvent::Exited { exit_code: 137, timed_out };
            assert_eq!(events, [ExecEvent::Started { pid: 7 }, ExecEvent::Stderr("two".into()), exited]);
        }
    }

    #[tokio::test]
    async fn refusals_and_nonsense_are_told_apart() {
        let refused =
            run("400 Bad Request", br#"{"code":"invalid_argument","message":"no such cwd"}"#.to_vec());
        assert_eq!(refused.await.0.unwrap_err().to_string(), "no such cwd");
        let late = run("200 OK", envelope(2, r#"{"error":{"code":"internal","message":"died"}}"#));
        assert_eq!(late.await.0.unwrap_err().to_string(), "died");
        let over = run("200 OK", envelope(2, r#"{"error":{"code":"deadline_exceeded","message":"late"}}"#));
        assert_eq!(over.await.0.unwrap().code(), 137);
        let cut = run("200 OK", envelope(0, r#"{"event":{}}"#)).await.0;
        assert!(matches!(cut, Err(ExecError::BrokenOff(_))), "{cut:?}");
        let early = run("200 OK", envelope(2, "{}")).await.0;
        assert!(matches!(early, Err(ExecError::Protocol(_))), "{early:?}");
        let huge = run("200 OK", vec![0, 0xff, 0xff, 0xff, 0xff]).await.0;
        assert!(matches!(huge, Err(ExecError::Protocol(_))), "{huge:?}");
        let garbled = run("200 OK", envelope(0, r#"{"event":{"data":{"stdout":"!"}}}"#)).await.0;
        assert!(matches!(garbled, Err(ExecError::Protocol(_))), "{garbled:?}");
    }
}
