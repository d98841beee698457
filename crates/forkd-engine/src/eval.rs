//! Code in a guest's interpreter: the code interpreter protocol, whose answer is a JSON object a line.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forkd_api::code::{self, Displayed, EvalEvent, Evaluated};
use forkd_envd::connect::UNARY_TYPE;
use forkd_envd::interpreter::{CodeError, EXECUTE, ExecuteRequest, Line};
use forkd_envd::port::INTERPRETER;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use crate::agent::{Agent, AgentError};

/// A line has a picture at most.
const MAX_LINE: usize = 16 << 20;
/// No agent sends longer lines.
const MAX_SKIPPED: usize = 64 << 20;
/// What is kept of each stream, and of all results together.
const MAX_KEPT: usize = 16 << 20;
const MAX_REFUSAL: usize = 64 << 10;

/// What to run.
#[derive(Debug, Clone, Default)]
pub struct Code<'a> {
    pub code: &'a str,
    /// Without one, Python. Not together with a context.
    pub language: Option<&'a str>,
    pub context: Option<&'a str>,
    pub env: BTreeMap<String, String>,
}

#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the interpreter refused with {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("unexpected message of the interpreter: {0}")]
    Protocol(String),
    #[error("the code took longer than {0:?}")]
    Timeout(Duration),
}

/// Where what code prints goes, too, as it comes.
pub type Printed = mpsc::Sender<String>;

/// Runs code and waits for its end. Code that takes too long is interrupted: its client goes away.
pub async fn eval(agent: &Agent, code: &Code<'_>, limit: Duration) -> Result<Evaluated, EvalError> {
    eval_streaming(agent, code, limit, None).await
}

/// As [`eval`], and sends what it prints at once. Code whose reader is slow has to wait, and has no more time for that.
pub async fn eval_streaming(
    agent: &Agent,
    code: &Code<'_>,
    limit: Duration,
    printed: Option<&Printed>,
) -> Result<Evaluated, EvalError> {
    let mut collected = Collected::default();
    let running = async {
        let mut running = start(agent, code).await?;
        loop {
            let event = running.next().await?;
            if let (Some(printed), EvalEvent::Stdout(text) | EvalEvent::Stderr(text)) = (printed, &event) {
                // The receiver may be gone.
                let _ = printed.send(text.clone()).await;
            }
            let last = event.is_last();
            collected.add(event);
            if last {
                return Ok(());
            }
        }
    };
    match tokio::time::timeout(limit, running).await {
        Ok(ran) => ran.map(|()| collected.finish()),
        Err(_) => Err(EvalError::Timeout(limit)),
    }
}

/// Code that runs. Dropped, it is interrupted.
#[derive(Debug)]
pub struct Running {
    body: hyper::body::Incoming,
    buffer: BytesMut,
    /// How much of the buffer has no end of a line.
    searched: usize,
    /// Bytes of a line that is too long.
    skipped: usize,
    truncated: bool,
}

/// Starts code, which is then read.
pub async fn start(agent: &Agent, code: &Code<'_>) -> Result<Running, EvalError> {
    let request = ExecuteRequest {
        code: code.code.into(),
        context_id: code.context.map(Into::into),
        language: code.language.map(Into::into),
        env_vars: Some(code.env.clone()),
    };
    let body = serde_json::to_vec(&request).map_err(AgentError::Request)?;
    let body = ask(agent, Method::POST, EXECUTE, body).await?;
    Ok(Running { body, buffer: BytesMut::new(), searched: 0, skipped: 0, truncated: false })
}

/// Asks the guest's interpreters. What they refuse is said in their words.
pub(crate) async fn ask(
    agent: &Agent,
    method: Method,
    path: &str,
    body: Vec<u8>,
) -> Result<hyper::body::Incoming, EvalError> {
    let stream = agent.guest().connect(INTERPRETER.into()).await.map_err(AgentError::from)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(AgentError::from)?;
    // Ends with the body, or when its reader has gone.
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "guest")
        .header("content-type", UNARY_TYPE)
        .body(Full::new(Bytes::from(body)))
        .map_err(|error: hyper::http::Error| EvalError::Protocol(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(AgentError::from)?;
    let status = response.status();
    if status.is_success() {
        return Ok(response.into_body());
    }
    let body = Limited::new(response.into_body(), MAX_REFUSAL).collect().await;
    let body = body.map(|body| body.to_bytes()).unwrap_or_default();
    let message = String::from_utf8_lossy(&body).trim().chars().take(500).collect();
    Err(EvalError::Refused { status, message })
}

impl Running {
    /// What it does next: `Stdout`, `Stderr`, `Result`, `Raised`, and `Ended` as the last.
    pub async fn next(&mut self) -> Result<EvalEvent, EvalError> {
        loop {
            let line = self.line().await?;
            let line: Line =
                serde_json::from_slice(&line).map_err(|error| EvalError::Protocol(error.to_string()))?;
            return Ok(match line {
                Line::Stdout(printed) => EvalEvent::Stdout(printed.text),
                Line::Stderr(printed) => EvalEvent::Stderr(printed.text),
                Line::Result { is_main_result, kinds } => EvalEvent::Result(displayed(kinds, is_main_result)),
                Line::Error(CodeError { name, value, traceback }) => {
                    EvalEvent::Raised(code::EvalError { name, value, traceback })
                }
                Line::EndOfExecution => EvalEvent::Ended { timed_out: false, truncated: self.truncated },
                Line::NumberOfExecutions { .. } | Line::Keepalive | Line::Unknown => continue,
            });
        }
    }

    /// Whether something was too long to be told.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// The next line that is not too long.
    async fn line(&mut self) -> Result<BytesMut, EvalError> {
        loop {
            while let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(self.searched + end + 1);
                self.searched = 0;
                if std::mem::take(&mut self.skipped) == 0 {
                    return Ok(line);
                }
            }
            if self.buffer.len() > MAX_LINE {
                // Whatever it is, the code has come further, and its state is worth more than this.
                self.skipped += self.buffer.len();
                self.buffer.clear();
                self.truncated = true;
            }
            if self.skipped > MAX_SKIPPED {
                return Err(EvalError::Protocol(format!("a line longer than {MAX_SKIPPED} bytes")));
            }
            self.searched = self.buffer.len();
            match self.body.frame().await {
                Some(frame) => {
                    let data = frame.map_err(AgentError::from)?.into_data().unwrap_or_default();
                    self.buffer.extend_from_slice(&data);
                }
                None => return Err(EvalError::Protocol("the answer ended before the code".into())),
            }
        }
    }
}

fn displayed(kinds: Map<String, Value>, main: bool) -> Displayed {
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Displayed { data: kinds.into_iter().map(|(kind, value)| (mime(kind), text(value))).collect(), main }
}

/// The type of what an interpreter displays; what has none keeps the interpreter's word for it.
fn mime(kind: String) -> String {
    let known = match kind.as_str() {
        "text" => "text/plain",
        "html" => "text/html",
        "markdown" => "text/markdown",
        "latex" => "text/latex",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "jpeg" => "image/jpeg",
        "pdf" => "application/pdf",
        "json" => "application/json",
        "javascript" => "application/javascript",
        _ => return kind,
    };
    known.to_owned()
}

/// What code has said so far, as much of it as an answer holds.
#[derive(Debug, Default)]
pub struct Collected {
    evaluated: Evaluated,
    /// The value of the last expression.
    main: Option<Shown>,
}

/// One value in all its types.
type Shown = BTreeMap<String, String>;

impl Collected {
    pub fn add(&mut self, event: EvalEvent) {
        let evaluated = &mut self.evaluated;
        match event {
            EvalEvent::Stdout(text) => append(&mut evaluated.stdout, &text, &mut evaluated.truncated),
            EvalEvent::Stderr(text) => append(&mut evaluated.stderr, &text, &mut evaluated.truncated),
            EvalEvent::Result(Displayed { data, main: true }) => {
                evaluated.result = data.get("text/plain").cloned();
                self.main = Some(data);
            }
            EvalEvent::Result(Displayed { data, main: false }) => {
                match evaluated.results.iter().map(size).sum::<usize>() + size(&data) <= MAX_KEPT {
                    true => evaluated.results.push(data),
                    false => evaluated.truncated = true,
                }
            }
            EvalEvent::Raised(error) => evaluated.error = Some(error),
            EvalEvent::Ended { timed_out, truncated } => {
                evaluated.timed_out = timed_out;
                evaluated.truncated |= truncated;
            }
            EvalEvent::Error(_) => {}
        }
    }

    /// Adds the value of the last expression, which has room before what was only displayed.
    pub fn finish(self) -> Evaluated {
        let Collected { mut evaluated, main } = self;
        let Some(main) = main else { return evaluated };
        while evaluated.results.iter().map(size).sum::<usize>() + size(&main) > MAX_KEPT
            && evaluated.results.pop().is_some()
        {
            evaluated.truncated = true;
        }
        evaluated.results.push(main);
        evaluated
    }
}

/// Bytes of what is shown.
fn size(shown: &Shown) -> usize {
    shown.values().map(String::len).sum()
}

fn append(stream: &mut String, text: &str, truncated: &mut bool) {
    match stream.len() + text.len() <= MAX_KEPT {
        true => stream.push_str(text),
        false => *truncated = true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::answering;

    async fn answer(status: &str, body: &str) -> (Result<Evaluated, EvalError>, String) {
        let (_directory, agent, request) = answering(status, body.as_bytes().to_vec());
        let code = Code { code: "1 + 1", language: Some("python"), ..Code::default() };
        let evaluated = eval(&agent, &code, Duration::from_secs(10)).await;
        (evaluated, request.await.unwrap())
    }

    #[tokio::test]
    async fn everything_that_is_said_is_kept() {
        let body = concat!(
            r#"{"type":"number_of_executions","execution_count":1}"#,
            "\n",
            r#"{"type":"stdout","text":"one\n","timestamp":"x"}"#,
            "\n",
            r#"{"type":"result","text":"Figure","png":"aGk="}"#,
            "\n",
            r#"{"type":"keepalive"}"#,
            "\n",
            r#"{"type":"stderr","text":"two","timestamp":"x"}"#,
            "\n",
            r#"{"type":"result","text":"2","json":{"a":1},"is_main_result":true}"#,
            "\n",
            r#"{"type":"end_of_execution"}"#,
            "\n",
        );
        let (evaluated, request) = answer("200 OK", body).await;
        let evaluated = evaluated.unwrap();
        assert!(request.starts_with("POST /execute"), "{request}");
        assert!(request.contains(r#""language":"python""#), "{request}");
        assert_eq!(evaluated.result.as_deref(), Some("2"));
        assert_eq!((&evaluated.stdout[..], &evaluated.stderr[..]), ("one\n", "two"));
        assert_eq!(evaluated.results.len(), 2);
        assert_eq!(evaluated.results[0]["image/png"], "aGk=");
        assert_eq!(evaluated.results[1]["application/json"], r#"{"a":1}"#);
        assert!(!evaluated.truncated && evaluated.error.is_none());
    }

    #[tokio::test]
    async fn the_value_of_the_last_expression_is_last_and_has_room() {
        let line = |message: Value| message.to_string() + "\n";
        let end = line(json!({ "type": "end_of_execution" }));
        let main = line(json!({ "type": "result", "text": "42", "is_main_result": true }));
        let figure = line(json!({ "type": "result", "text": "Figure", "png": "aGk=" }));
        let evaluated = answer("200 OK", &format!("{main}{figure}{end}")).await.0.unwrap();
        assert_eq!(evaluated.results.len(), 2);
        assert_eq!(
            (evaluated.result.as_deref(), &evaluated.results[1]["text/plain"][..]),
            (Some("42"), "42")
        );

        let large = line(json!({ "type": "result", "text": "x".repeat(MAX_KEPT - 1) }));
        let evaluated = answer("200 OK", &format!("{large}{main}{end}")).await.0.unwrap();
        assert_eq!(evaluated.results, [Shown::from([("text/plain".into(), "42".into())])]);
        assert!(evaluated.truncated);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_left_out() {
        let long = json!({ "type": "result", "text": "x".repeat(MAX_LINE + 1) });
        let rest = r#"{"type":"stdout","text":"after"}"#;
        let body = format!("{long}\n{rest}\n{}\n", r#"{"type":"end_of_execution"}"#);
        let evaluated = answer("200 OK", &body).await.0.unwrap();
        assert!(evaluated.truncated && evaluated.results.is_empty());
        assert_eq!(evaluated.stdout, "after");
    }

    #[tokio::test]
    async fn what_is_printed_is_handed_on_as_it_comes() {
        let line = |kind: &str, text: &str| json!({ "type": kind, "text": text }).to_string() + "\n";
        let body = [
            line("stdout", "one\ntw"),
            line("keepalive", ""),
            line("stderr", "wrong"),
            line("result", "not printed"),
            line("stdout", "o"),
            line("end_of_execution", ""),
        ];
        let (_directory, agent, _request) = answering("200 OK", body.concat().into_bytes());
        let (printed, mut read) = mpsc::channel(8);
        let code = Code { code: "x", ..Code::default() };
        let evaluated = eval_streaming(&agent, &code, Duration::from_secs(10), Some(&printed)).await.unwrap();
        assert_eq!(evaluated.stdout, "one\ntwo");
        drop(printed);
        let mut pieces = Vec::new();
        while let Some(piece) = read.recv().await {
            pieces.push(piece);
        }
        assert_eq!(pieces, ["one\ntw", "wrong", "o"]);
    }

    #[tokio::test]
    async fn failures_of_the_code_and_of_the_interpreter_are_told_apart() {
        let body = concat!(
            r#"{"type":"error","name":"ValueError","value":"no","traceback":"line 1"}"#,
            "\n",
            r#"{"type":"end_of_execution"}"#,
            "\n"
        );
        let error = answer("200 OK", body).await.0.unwrap().error.unwrap();
        assert_eq!((&error.name[..], &error.value[..]), ("ValueError", "no"));
        let refused = answer("404 Not Found", "no such context").await.0.unwrap_err();
        assert!(matches!(refused, EvalError::Refused { status: StatusCode::NOT_FOUND, .. }), "{refused}");
        for nonsense in ["", "no json\n", "[]\n", "{\"type\":\"error\"}\n", r#"{"type":"end_of_execution"}"#]
        {
            let wrong = answer("200 OK", nonsense).await.0;
            assert!(
                matches!(wrong, Err(EvalError::Protocol(_) | EvalError::Agent(_))),
                "{nonsense}: {wrong:?}"
            );
        }
    }

    #[tokio::test]
    async fn values_have_types_and_come_as_events() {
        let line = |message: Value| message.to_string() + "\n";
        let body = [
            line(json!({ "type": "result", "png": "aGk=", "chart": { "a": 1 } })),
            line(json!({ "type": "error", "name": "E", "value": "v", "traceback": "t" })),
            line(json!({ "type": "end_of_execution" })),
        ];
        let (_directory, agent, _request) = answering("200 OK", body.concat().into_bytes());
        let mut running = start(&agent, &Code::default()).await.unwrap();
        let data = [("image/png", "aGk="), ("chart", r#"{"a":1}"#)];
        let data = data.map(|(kind, value)| (kind.to_owned(), value.to_owned())).into();
        assert_eq!(running.next().await.unwrap(), EvalEvent::Result(Displayed { data, main: false }));
        assert!(matches!(running.next().await.unwrap(), EvalEvent::Raised(error) if error.name == "E"));
        let ended = EvalEvent::Ended { timed_out: false, truncated: false };
        assert_eq!(running.next().await.unwrap(), ended);
    }

    #[test]
    fn more_than_is_kept_is_cut_and_said() {
        let mut collected = Collected::default();
        for _ in 0..4 {
            collected.add(EvalEvent::Stdout("x".repeat(6 << 20)));
        }
        let evaluated = collected.finish();
        assert_eq!(evaluated.stdout.len(), 12 << 20);
        assert!(evaluated.truncated);
    }
}
