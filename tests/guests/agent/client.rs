//! A client of one guest: processes, files and code, as little of the protocols as the tests need. Nothing is read ahead of
//! the caller, so that it can be slow.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use forkd_engine::agent::Agent;
use forkd_envd::connect::{Decoder, Frame, STREAM_TYPE, message, outcome};
use forkd_envd::port::{ENVD, INTERPRETER};
use forkd_envd::process::START;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use super::world::{Failure, LIMIT};

/// The agent sends chunks of output far smaller than this.
const MAX_MESSAGE: usize = 4 << 20;

pub struct Client<'a> {
    agent: &'a Agent,
}

/// What became of a piece of code.
#[derive(Debug, Default)]
pub struct Execution {
    pub text: String,
    pub stdout: String,
    pub error: Option<Value>,
}

impl<'a> Client<'a> {
    pub fn new(agent: &'a Agent) -> Client<'a> {
        Client { agent }
    }

    async fn send(
        &self,
        port: u16,
        path: &str,
        kind: &str,
        body: Vec<u8>,
    ) -> Result<Response<Incoming>, Failure> {
        let stream = self.agent.guest().connect(port.into()).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // Ends with the body or with whoever reads it.
        tokio::spawn(connection);
        let request = Request::post(path)
            .header("host", "guest")
            .header("content-type", kind)
            .body(Full::new(Bytes::from(body)))?;
        Ok(tokio::time::timeout(LIMIT, sender.send_request(request)).await??)
    }

    /// A status and what is said with it.
    pub async fn upload(&self, path: &str, content: Vec<u8>) -> Result<(StatusCode, String), Failure> {
        let path = format!("/files?path={path}");
        let response = self.send(ENVD, &path, "application/octet-stream", content).await?;
        let status = response.status();
        Ok((status, String::from_utf8(response.into_body().collect().await?.to_bytes().into())?))
    }

    pub async fn create_context(&self) -> Result<String, Failure> {
        let response = self.send(INTERPRETER, "/contexts", "application/json", b"{}".into()).await?;
        let answer: Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
        Ok(answer["id"].as_str().ok_or("no id")?.to_owned())
    }

    /// Runs Python in the default context.
    pub async fn python(&self, code: &str) -> Result<Execution, Failure> {
        self.execute(&json!({ "code": code })).await
    }

    pub async fn execute(&self, request: &Value) -> Result<Execution, Failure> {
        let body = request.to_string().into_bytes();
        let response = self.send(INTERPRETER, "/execute", "application/json", body).await?;
        let status = response.status();
        let answer = tokio::time::timeout(LIMIT, response.into_body().collect()).await??.to_bytes();
        if !status.is_success() {
            return Err(format!("/execute: {status}: {}", String::from_utf8_lossy(&answer)).into());
        }
        let mut execution = Execution::default();
        for line in answer.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value = serde_json::from_slice(line)?;
            let text = message["text"].as_str().unwrap_or_default();
            match message["type"].as_str() {
                Some("stdout") => execution.stdout.push_str(text),
                Some("result") => text.clone_into(&mut execution.text),
                Some("error") => execution.error = Some(message),
                _ => {}
            }
        }
        Ok(execution)
    }

    /// Python that prints one JSON value.
    pub async fn python_json(&self, code: &str) -> Result<Value, Failure> {
        let execution = self.python(code).await?;
        match execution.error {
            Some(error) => Err(format!("the guest's Python: {error}").into()),
            None => Ok(serde_json::from_str(&execution.stdout)?),
        }
    }

    /// Starts a process, whose events come as they are asked for.
    pub async fn start(&self, words: &[&str]) -> Result<Events, Failure> {
        let (program, arguments) = words.split_first().ok_or("no program")?;
        let request = json!({ "process": { "cmd": program, "args": arguments }, "stdin": false }).to_string();
        let response = self.send(ENVD, START, STREAM_TYPE, message(request.as_bytes()).into()).await?;
        let status = response.status();
        let mut events = Events { body: response.into_body(), decoder: Decoder::new(MAX_MESSAGE) };
        match events.next().await? {
            Some(event) if status.is_success() && event["start"]["pid"].is_u64() => Ok(events),
            other => Err(format!("{words:?} did not start: {status} {other:?}").into()),
        }
    }

    /// Runs a process that must succeed, and returns what it printed.
    pub async fn run(&self, words: &[&str]) -> Result<String, Failure> {
        let mut events = self.start(words).await?;
        let mut output = Vec::new();
        let mut ended = Value::Null;
        while let Some(event) = events.next().await? {
            output.extend(stdout_of(&event)?);
            if event["end"].is_object() {
                ended = event["end"].clone();
            }
        }
        let output = String::from_utf8(output)?;
        // Zero is left out, as Connect's JSON does with defaults.
        if ended["exited"] == true && ended["exitCode"].as_i64().unwrap_or(0) == 0 {
            return Ok(output);
        }
        Err(format!("{words:?} ended with {ended}: {output}").into())
    }

    /// A field of the agent's own status, such as `VmRSS`, in KiB.
    pub async fn agent_kib(&self, field: &str) -> Result<u64, Failure> {
        let status = self.run(&["cat", "/proc/1/status"]).await?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next()).ok_or("no such field")?;
        Ok(number.parse()?)
    }
}

/// What an event carries of a process's output.
pub fn stdout_of(event: &Value) -> Result<Vec<u8>, Failure> {
    match event["data"]["stdout"].as_str() {
        Some(text) => Ok(STANDARD.decode(text)?),
        None => Ok(Vec::new()),
    }
}

/// The events of a process.
pub struct Events {
    body: Incoming,
    decoder: Decoder,
}

impl Events {
    /// The next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Result<Option<Value>, Failure> {
        match tokio::time::timeout(LIMIT, self.frame()).await?? {
            Some(Frame::Message(json)) => {
                let mut message: Value = serde_json::from_slice(&json)?;
                Ok(Some(message["event"].take()))
            }
            Some(Frame::End(json)) => {
                outcome(&json)??;
                Ok(None)
            }
            None => Ok(None),
        }
    }

    async fn frame(&mut self) -> Result<Option<Frame>, Failure> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return Ok(Some(frame));
            }
            match self.body.frame().await.transpose()? {
                Some(frame) => self.decoder.push(&frame.into_data().unwrap_or_default()),
                None => return self.decoder.finish().map(|()| None).map_err(|_| "a stream broke off".into()),
            }
        }
    }
}
