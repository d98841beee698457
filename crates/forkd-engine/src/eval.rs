//! Code in a guest's interpreter: the code interpreter protocol, whose answer is a JSON object a line.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forkd_envd::connect::UNARY_TYPE;
use forkd_envd::interpreter::{CodeError, EXECUTE, ExecuteRequest, Line};
use forkd_envd::port::INTERPRETER;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper::{Request, StatusCode};
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

/// One value in all its kinds.
pub type Shown = BTreeMap<String, String>;

/// What it has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evaluated {
    /// The value of the last expression, as text.
    pub result: Option<String>,
    /// Everything that was displayed, by its kind (`text`, `html`, `png`, …), and then the value of the last expression.
    pub results: Vec<Shown>,
    pub stdout: String,
    pub stderr: String,
    pub error: Option<CodeError>,
    /// Whether there was more than is kept.
    pub truncated: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error("the interpreter refuses with {status}: {message}")]
    Refused { status: StatusCode, message: String },
    #[error("the interpreter sent something that is no part of the protocol: {0}")]
    Protocol(String),
    #[error("the code took longer than {0:?}")]
    Timeout(Duration),
}

/// Where what code prints goes, too, as it comes.
pub type Printed = mpsc::Sender<String>;

/// Runs code and waits for its end. Code that takes too long is interrupted: its client goes away.
pub async fn eval(agent: &Agent, code: &Code<'_>, limit: Duration) -> Result<Evaluated, EvalError> {
    eval_aloud(agent, code, limit, None).await
}

/// The same, and what it prints is handed on at once. Code whose reader is slow has to wait, and has no more time for that.
pub async fn eval_aloud(
    agent: &Agent,
    code: &Code<'_>,
    limit: Duration,
    printed: Option<&Printed>,
) -> Result<Evaluated, EvalError> {
    match tokio::time::timeout(limit, run(agent, code, printed)).await {
        Ok(evaluated) => evaluated,
        Err(_) => Err(EvalError::Timeout(limit)),
    }
}

async fn run(agent: &Agent, code: &Code<'_>, printed: Option<&Printed>) -> Result<Evaluated, EvalError> {
    let request = ExecuteRequest {
        code: code.code.into(),
        context_id: code.context.map(Into::into),
        language: code.language.map(Into::into),
        env_vars: Some(code.env.clone()),
    };
    let body = serde_json::to_vec(&request).map_err(AgentError::Request)?;
    let stream = agent.guest().connect(INTERPRETER.into()).await.map_err(AgentError::from)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(AgentError::from)?;
    // Ends with the body, or when nobody reads it any more.
    tokio::spawn(connection);
    let request = Request::post(EXECUTE)
        .header("host", "guest")
        .header("content-type", UNARY_TYPE)
        .body(Full::new(Bytes::from(body)))
        .map_err(|error: hyper::http::Error| EvalError::Protocol(error.to_string()))?;
    let response = sender.send_request(request).await.map_err(AgentError::from)?;
    let status = response.status();
    if !status.is_success() {
        let body = Limited::new(response.into_body(), MAX_REFUSAL).collect().await;
        let body = body.map(|body| body.to_bytes()).unwrap_or_default();
        let message = String::from_utf8_lossy(&body).trim().chars().take(500).collect();
        return Err(EvalError::Refused { status, message });
    }
    let mut body = response.into_body();
    let (mut buffer, mut evaluated) = (BytesMut::new(), Evaluated::default());
    let (mut main, mut searched) = (None, 0);
    // Bytes of a line that is too long.
    let mut skipped = 0;
    loop {
        while let Some(end) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let line = buffer.split_to(searched + end + 1);
            searched = 0;
            if std::mem::take(&mut skipped) > 0 {
                continue;
            }
            let before = (evaluated.stdout.len(), evaluated.stderr.len());
            let line =
                serde_json::from_slice(&line).map_err(|error| EvalError::Protocol(error.to_string()))?;
            if !evaluated.take(line, &mut main) {
                evaluated.close(main);
                return Ok(evaluated);
            }
            if let Some(printed) = printed {
                for new in [evaluated.stdout.get(before.0..), evaluated.stderr.get(before.1..)] {
                    let Some(new) = new.filter(|new| !new.is_empty()) else { continue };
                    // Whoever does not listen does not miss it.
                    let _ = printed.send(new.to_owned()).await;
                }
            }
        }
        if buffer.len() > MAX_LINE {
            // Whatever it is, the code has come further, and its state is worth more than this.
            skipped += buffer.len();
            buffer.clear();
            evaluated.truncated = true;
        }
        if skipped > MAX_SKIPPED {
            return Err(EvalError::Protocol(format!("a line longer than {MAX_SKIPPED} bytes")));
        }
        searched = buffer.len();
        match body.frame().await {
            Some(frame) => {
                buffer.extend_from_slice(&frame.map_err(AgentError::from)?.into_data().unwrap_or_default())
            }
            None => return Err(EvalError::Protocol("the answer ended before the code".into())),
        }
    }
}

impl Evaluated {
    /// Takes one line of the answer. `false` for the last one.
    fn take(&mut self, line: Line, main: &mut Option<Shown>) -> bool {
        match line {
            Line::Stdout(printed) => append(&mut self.stdout, &printed.text, &mut self.truncated),
            Line::Stderr(printed) => append(&mut self.stderr, &printed.text, &mut self.truncated),
            Line::Result { is_main_result, kinds } => self.keep(kinds, is_main_result, main),
            Line::Error(error) => self.error = Some(error),
            Line::EndOfExecution => return false,
            Line::NumberOfExecutions { .. } | Line::Keepalive | Line::Unknown => {}
        }
        true
    }

    fn keep(&mut self, kinds: Map<String, Value>, main: bool, last: &mut Option<Shown>) {
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let result: Shown = kinds.into_iter().map(|(kind, value)| (kind, text(value))).collect();
        if main {
            self.result = result.get("text").cloned();
            *last = Some(result);
            return;
        }
        match self.results.iter().map(size).sum::<usize>() + size(&result) <= MAX_KEPT {
            true => self.results.push(result),
            false => self.truncated = true,
        }
    }

    /// Adds the value of the last expression, which has room before what was only displayed.
    fn close(&mut self, main: Option<Shown>) {
        let Some(main) = main else { return };
        while self.results.iter().map(size).sum::<usize>() + size(&main) > MAX_KEPT
            && self.results.pop().is_some()
        {
            self.truncated = true;
        }
        self.results.push(main);
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
        assert_eq!(evaluated.results[0]["png"], "aGk=");
        assert_eq!(evaluated.results[1]["json"], r#"{"a":1}"#);
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
        assert_eq!((evaluated.result.as_deref(), &evaluated.results[1]["text"][..]), (Some("42"), "42"));

        let large = line(json!({ "type": "result", "text": "x".repeat(MAX_KEPT - 1) }));
        let evaluated = answer("200 OK", &format!("{large}{main}{end}")).await.0.unwrap();
        assert_eq!(evaluated.results, [Shown::from([("text".into(), "42".into())])]);
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
        let evaluated = eval_aloud(&agent, &code, Duration::from_secs(10), Some(&printed)).await.unwrap();
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

    #[test]
    fn more_than_is_kept_is_cut_and_said() {
        let mut evaluated = Evaluated::default();
        let line = Line::Stdout(forkd_envd::interpreter::Printed {
            text: "x".repeat(6 << 20),
            timestamp: Value::Null,
        });
        for _ in 0..4 {
            assert!(evaluated.take(line.clone(), &mut None));
        }
        assert_eq!(evaluated.stdout.len(), 12 << 20);
        assert!(evaluated.truncated);
    }
}
