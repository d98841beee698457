//! Commands that are run in a guest before it becomes a snapshot, one after another, as root with `sh -c`.

use std::collections::BTreeMap;
use std::time::Duration;

use forkd_api::data::Data;
use forkd_api::exec::ExecEvent;

use crate::agent::Agent;
use crate::eval::Printed;
use crate::exec::{ExecError, Program, start};

/// A command takes no longer: an agent that does not end it is given up a little later.
const LIMIT: Duration = Duration::from_secs(3600);
const GRACE: Duration = Duration::from_secs(30);
/// What is told of the output of a command that failed.
const LAST_LINES: usize = 20;
const MAX_TAIL: usize = 1500;
/// What is told of a command.
const MAX_SHOWN: usize = 200;

/// A command did not do what it was to do.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("the command {command:?}")]
    Exec { command: String, source: ExecError },
    #[error("the command {command:?} exited with {code}{}", last_lines(tail))]
    Exited { command: String, code: i32, tail: String },
    #[error("the command {command:?} ran for more than {} s", LIMIT.as_secs())]
    TimedOut { command: String },
}

fn last_lines(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!("; its last lines of output:\n{tail}") }
}

/// Runs a command to its end. What it prints is handed on as it comes.
pub(crate) async fn run(agent: &Agent, command: &str, printed: Option<&Printed>) -> Result<(), CommandError> {
    match tokio::time::timeout(LIMIT + GRACE, run_to_end(agent, command, printed)).await {
        Ok(ran) => ran,
        Err(_) => Err(CommandError::TimedOut { command: shown(command) }),
    }
}

async fn run_to_end(agent: &Agent, command: &str, printed: Option<&Printed>) -> Result<(), CommandError> {
    let failed = |source| CommandError::Exec { command: shown(command), source };
    let arguments = ["sh", "-c", command].map(str::to_owned);
    let program = Program {
        arguments: &arguments,
        env: &BTreeMap::new(),
        workdir: "",
        user: Some("root"),
        stdin: None,
        limit: Some(LIMIT),
    };
    let mut running = start(agent, &program).await.map_err(failed)?;
    let mut tail = Tail::default();
    loop {
        match running.next().await.map_err(failed)? {
            ExecEvent::Stdout(Data(bytes)) | ExecEvent::Stderr(Data(bytes)) => {
                tail.add(&bytes);
                if let Some(printed) = printed {
                    // Who does not listen any more is noticed elsewhere.
                    let _ = printed.send(String::from_utf8_lossy(&bytes).into_owned()).await;
                }
            }
            ExecEvent::Exited { exit_code: 0, timed_out: false } => return Ok(()),
            ExecEvent::Exited { timed_out: true, .. } => {
                return Err(CommandError::TimedOut { command: shown(command) });
            }
            ExecEvent::Exited { exit_code, .. } => {
                let (command, tail) = (shown(command), tail.lines());
                return Err(CommandError::Exited { command, code: exit_code, tail });
            }
            _ => {}
        }
    }
}

fn shown(command: &str) -> String {
    command.chars().take(MAX_SHOWN).collect()
}

/// The end of what a command prints.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(&bytes[bytes.len().saturating_sub(MAX_TAIL)..]);
        let excess = self.0.len().saturating_sub(MAX_TAIL);
        self.0.drain(..excess);
    }

    fn lines(&self) -> String {
        let text = String::from_utf8_lossy(&self.0);
        let lines: Vec<&str> = text.trim_end().lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::answering;
    use tokio::sync::mpsc;

    fn envelope(flags: u8, json: &str) -> Vec<u8> {
        let length = u32::try_from(json.len()).unwrap().to_be_bytes();
        [&[flags][..], &length, json.as_bytes()].concat()
    }

    async fn run_with(code: i32) -> (Result<(), CommandError>, String, String) {
        let end = format!(r#"{{"event":{{"end":{{"exitCode":{code},"exited":true,"status":"x"}}}}}}"#);
        let body = [
            envelope(0, r#"{"event":{"start":{"pid":7}}}"#),
            envelope(0, r#"{"event":{"data":{"stdout":"b25lCg=="}}}"#),
            envelope(0, r#"{"event":{"data":{"stderr":"dHdvCg=="}}}"#),
            envelope(0, &end),
            envelope(2, "{}"),
        ];
        let (_directory, agent, request) = answering("200 OK", body.concat());
        let (printed, mut pieces) = mpsc::channel(16);
        let ran = run(&agent, "make it", Some(&printed)).await;
        drop(printed);
        let mut said = String::new();
        while let Some(piece) = pieces.recv().await {
            said += &piece;
        }
        (ran, said, request.await.unwrap())
    }

    #[tokio::test]
    async fn a_command_is_root_s_and_a_shell_s_and_its_output_is_told() {
        let (ran, said, request) = run_with(0).await;
        ran.unwrap();
        assert_eq!(said, "one\ntwo\n");
        for part in [r#""cmd":"sh""#, r#""args":["-c","make it"]"#, "authorization: Basic cm9vdDo="] {
            assert!(request.contains(part), "{request}");
        }
    }

    #[tokio::test]
    async fn a_command_that_fails_is_told_with_its_status_and_its_last_words() {
        let error = run_with(3).await.0.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the command \"make it\" exited with 3; its last lines of output:\none\ntwo"
        );
    }

    #[test]
    fn a_tail_is_bounded() {
        let mut tail = Tail::default();
        (0..10_000).for_each(|number| tail.add(format!("{number}\n").as_bytes()));
        assert!(tail.0.len() <= MAX_TAIL);
        let lines = tail.lines();
        assert_eq!((lines.lines().count(), lines.lines().last()), (LAST_LINES, Some("9999")));
        tail.add(&[b'x'; 3 * MAX_TAIL]);
        assert_eq!(tail.lines().len(), MAX_TAIL);
    }
}
