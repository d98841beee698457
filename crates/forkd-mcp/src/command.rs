//! Commands and code of calls.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forkd_api::code::{Eval, EvalError, Evaluated, Language};
use forkd_api::exec::{ExecEvent, ExecStart, Signal};
use forkd_client::{Client, ClientError, Input};
use tokio::time::timeout;

use crate::outputs::MAX_OUTPUT;
use crate::progress::Progress;

/// How often output of a command is told as progress.
const TELL: Duration = Duration::from_millis(500);
/// How long a command that nobody waits for any more may take to be killed.
const KILL: Duration = Duration::from_secs(5);
/// MIME types of pictures that models are shown.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/webp", "image/gif"];
/// What is shown of a value that is no picture, the first that there is.
const TEXTS: [&str; 5] = ["text/plain", "text/markdown", "application/json", "text/latex", "text/html"];

/// What is to run.
#[derive(Debug, Clone)]
pub(crate) enum Program {
    /// A command line, for `sh -c`.
    Shell {
        command: String,
        cwd: Option<String>,
    },
    Command {
        args: Vec<String>,
    },
    /// Code, for an interpreter that keeps its state.
    Code {
        code: String,
        language: Language,
    },
}

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub program: Program,
    pub env: BTreeMap<String, String>,
    pub timeout_secs: u64,
}

/// A picture, in base64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Picture {
    pub data: String,
    pub mime_type: String,
}

/// What it came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub stdout: String,
    pub stderr: String,
    /// Of commands.
    pub exit_code: Option<i32>,
    pub timed_out: bool,
    /// Whether there was more output than is kept.
    pub truncated: bool,
    /// Values that code has shown, its last expression included.
    pub values: Vec<String>,
    pub pictures: Vec<Picture>,
    /// What code has raised.
    pub error: Option<EvalError>,
}

impl Outcome {
    /// In a word or two.
    pub(crate) fn status(&self) -> String {
        match (self.exit_code, &self.error) {
            _ if self.timed_out => "timed out".into(),
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(error)) => format!("raised {}", error.name),
            (None, None) => "finished".into(),
        }
    }

    /// Whether it did what it should, as far as it says so itself.
    pub(crate) fn succeeded(&self) -> bool {
        !self.timed_out && self.error.is_none() && self.exit_code.is_none_or(|code| code == 0)
    }

    /// Everything that it has said, with the names of what is not stdout.
    pub(crate) fn text(&self) -> String {
        let mut text = self.stdout.clone();
        let mut section = |name: &str, content: &str| {
            if content.is_empty() {
                return;
            }
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text += &format!("[{name}]\n{content}");
        };
        section("stderr", &self.stderr);
        section("result", &self.values.join("\n"));
        if let Some(error) = &self.error {
            match error.traceback.trim_end() {
                "" => section("error", &format!("{}: {}", error.name, error.value)),
                traceback => section("error", traceback),
            }
        }
        if self.truncated {
            section("note", "There was more output than is kept.");
        }
        text
    }
}

/// Runs it. A command whose call is given up is killed; code is interrupted by the daemon.
pub(crate) async fn run(
    client: &Client,
    id: &str,
    job: &Job,
    progress: &Progress,
) -> Result<Outcome, ClientError> {
    let Job { program, env, timeout_secs } = job;
    let (args, cwd) = match program {
        Program::Shell { command, cwd } => {
            (vec!["sh".to_owned(), "-c".to_owned(), command.clone()], cwd.clone())
        }
        Program::Command { args } => (args.clone(), None),
        Program::Code { code, language } => {
            let wanted = Eval {
                code: code.clone(),
                language: *language,
                context: None,
                env: env.clone(),
                timeout_secs: *timeout_secs,
            };
            return Ok(progress.during("running", client.eval(id, &wanted)).await?.into());
        }
    };
    let start =
        ExecStart { args, env: env.clone(), cwd, timeout_secs: Some(*timeout_secs), ..Default::default() };
    progress.during("running", follow(client, id, &start, progress)).await
}

async fn follow(
    client: &Client,
    id: &str,
    start: &ExecStart,
    progress: &Progress,
) -> Result<Outcome, ClientError> {
    let (input, mut output) = client.start(id, start).await?;
    let mut running = Running(Some(input));
    if let Some(input) = &mut running.0 {
        input.close_stdin().await?;
    }
    let (mut stdout, mut stderr) = (Kept::default(), Kept::default());
    let mut told = Instant::now();
    loop {
        let event = output.next().await?;
        let piece = match &event {
            ExecEvent::Stdout(data) => {
                stdout.add(&data.0);
                &data.0
            }
            ExecEvent::Stderr(data) => {
                stderr.add(&data.0);
                &data.0
            }
            ExecEvent::Exited { exit_code, timed_out } => {
                running.0 = None;
                return Ok(Outcome {
                    truncated: stdout.truncated || stderr.truncated,
                    stdout: stdout.text(),
                    stderr: stderr.text(),
                    exit_code: Some(*exit_code),
                    timed_out: *timed_out,
                    ..Default::default()
                });
            }
            _ => continue,
        };
        if told.elapsed() >= TELL {
            told = Instant::now();
            if let Some(line) = last_line(piece) {
                progress.say(&line).await;
            }
        }
    }
}

fn last_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().map(str::trim).rfind(|line| !line.is_empty())?;
    Some(line.chars().filter(|character| !character.is_control()).collect())
}

/// A command that runs, and is killed when nobody follows it any more.
struct Running(Option<Input>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut input) = self.0.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                // Its own time ends it otherwise.
                let _ = timeout(KILL, input.signal(Signal::Kill)).await;
            });
        }
    }
}

/// The beginning of a stream, as far as it is kept.
#[derive(Debug, Default)]
struct Kept {
    bytes: Vec<u8>,
    truncated: bool,
}

impl Kept {
    fn add(&mut self, piece: &[u8]) {
        let room = MAX_OUTPUT.saturating_sub(self.bytes.len());
        self.truncated |= piece.len() > room;
        self.bytes.extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    fn text(self) -> String {
        String::from_utf8(self.bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }
}

impl From<Evaluated> for Outcome {
    fn from(evaluated: Evaluated) -> Outcome {
        let Evaluated { result, results, stdout, stderr, error, timed_out, truncated } = evaluated;
        let mut outcome = Outcome { stdout, stderr, error, timed_out, truncated, ..Default::default() };
        for mut value in results {
            if let Some(mime_type) = PICTURES.iter().find(|mime_type| value.contains_key(**mime_type)) {
                let data: String = value.remove(*mime_type).unwrap_or_default().split_whitespace().collect();
                outcome.pictures.push(Picture { data, mime_type: (*mime_type).to_owned() });
            } else if let Some(text) = TEXTS.iter().find_map(|mime_type| value.remove(*mime_type)) {
                outcome.values.push(text);
            }
        }
        // A guest that shows nothing of what it computes still says what that is.
        if let Some(result) = result
            && outcome.values.is_empty()
            && outcome.pictures.is_empty()
        {
            outcome.values.push(result);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn values_are_pictures_or_text() {
        let evaluated = Evaluated {
            result: Some("3".into()),
            results: vec![
                value(&[("image/png", "aGk=\n"), ("text/plain", "<Figure>")]),
                value(&[("text/html", "<b>"), ("text/plain", "bold")]),
                value(&[("application/x-unknown", "?")]),
            ],
            ..Default::default()
        };
        let outcome = Outcome::from(evaluated);
        assert_eq!(outcome.pictures, [Picture { data: "aGk=".into(), mime_type: "image/png".into() }]);
        assert_eq!(outcome.values, ["bold"]);
        assert_eq!((outcome.status().as_str(), outcome.succeeded()), ("finished", true));
        let bare = Outcome::from(Evaluated { result: Some("3".into()), ..Default::default() });
        assert_eq!(bare.values, ["3"]);
    }

    #[test]
    fn an_outcome_is_told_in_sections() {
        let error =
            EvalError { name: "ValueError".into(), value: "no".into(), traceback: "Traceback\n  x\n".into() };
        let outcome = Outcome {
            stdout: "out".into(),
            stderr: "err\n".into(),
            error: Some(error),
            truncated: true,
            ..Default::default()
        };
        assert_eq!(
            outcome.text(),
            "out\n[stderr]\nerr\n[error]\nTraceback\n  x\n[note]\nThere was more output than is kept."
        );
        assert_eq!((outcome.status().as_str(), outcome.succeeded()), ("raised ValueError", false));
        let failed = Outcome { exit_code: Some(3), ..Default::default() };
        assert_eq!((failed.status().as_str(), failed.text().as_str()), ("exit code 3", ""));
    }

    #[test]
    fn streams_are_kept_up_to_their_bound() {
        let mut kept = Kept::default();
        kept.add(&vec![b'x'; MAX_OUTPUT - 1]);
        assert!(!kept.truncated);
        kept.add(b"yz");
        assert!(kept.truncated && kept.bytes.len() == MAX_OUTPUT && kept.bytes.ends_with(b"y"));
        let odd = Kept { bytes: vec![b'a', 0xff], truncated: false };
        assert_eq!(odd.text(), "a\u{fffd}");
        assert_eq!(last_line(b"one\n two\x1b[0m\n\n"), Some("two[0m".into()));
        assert_eq!(last_line(b"\n"), None);
    }
}
