//! Commands and code of calls.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use forkd_api::code::{Displayed, Eval, EvalError, EvalEvent, Language};
use forkd_api::exec::{ExecEvent, ExecStart, Signal};
use forkd_client::{Client, ClientError, Input};
use tokio::time::timeout;

use crate::answer::{MAX_LINE, left_out_line};
use crate::outputs::MAX_OUTPUT;
use crate::progress::Progress;

/// What is kept of each end of a long stream. With the line between them, both fit into an output.
const MAX_END: usize = MAX_OUTPUT / 2 - MAX_LINE;
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
    /// How many bytes of stdout and of stderr are not kept: those in their middle.
    pub stdout_left_out: usize,
    pub stderr_left_out: usize,
    /// Whether there was more that is not kept: values, or what the daemon has cut.
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

    /// How many bytes of its streams are not kept.
    pub(crate) fn left_out(&self) -> usize {
        self.stdout_left_out + self.stderr_left_out
    }

    /// Everything that it has said, with the names of what is not stdout. Takes stdout, which may be long.
    pub(crate) fn take_text(&mut self) -> String {
        let mut text = std::mem::take(&mut self.stdout);
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

/// Why something could not be followed to its end, and what it had come to.
#[derive(Debug)]
pub(crate) struct Stopped {
    pub error: ClientError,
    pub until_then: Outcome,
}

/// Runs it, and tells the last lines of its output as progress. A command whose call is given up is killed; code is interrupted by the
/// daemon, which sees that nobody reads its stream.
pub(crate) async fn run(
    client: &Client,
    id: &str,
    job: &Job,
    progress: &Progress,
) -> Result<Outcome, Stopped> {
    let Job { program, env, timeout_secs } = job;
    let mut said = Said::default();
    let run = async {
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
                return evaluate(client, id, &wanted, &mut said, progress).await;
            }
        };
        let start = ExecStart {
            args,
            env: env.clone(),
            cwd,
            timeout_secs: Some(*timeout_secs),
            ..Default::default()
        };
        follow(client, id, &start, &mut said, progress).await
    };
    let ended = progress.during("running", run).await;
    let until_then = said.outcome();
    match ended {
        Ok(End { exit_code, timed_out }) => Ok(Outcome { exit_code, timed_out, ..until_then }),
        Err(error) => Err(Stopped { error, until_then }),
    }
}

/// How it ended.
struct End {
    /// Of commands.
    exit_code: Option<i32>,
    timed_out: bool,
}

async fn follow(
    client: &Client,
    id: &str,
    start: &ExecStart,
    said: &mut Said,
    progress: &Progress,
) -> Result<End, ClientError> {
    let (input, mut output) = client.start(id, start).await?;
    let mut running = Running(Some(input));
    if let Some(input) = &mut running.0 {
        input.close_stdin().await?;
    }
    loop {
        match output.next().await? {
            ExecEvent::Stdout(data) => {
                said.stdout.add(&data.0);
                progress.output(&data.0).await;
            }
            ExecEvent::Stderr(data) => {
                said.stderr.add(&data.0);
                progress.output(&data.0).await;
            }
            ExecEvent::Exited { exit_code, timed_out } => {
                running.0 = None;
                return Ok(End { exit_code: Some(exit_code), timed_out });
            }
            _ => {}
        }
    }
}

async fn evaluate(
    client: &Client,
    id: &str,
    wanted: &Eval,
    said: &mut Said,
    progress: &Progress,
) -> Result<End, ClientError> {
    let mut events = client.eval_lines(id, wanted).await?;
    while let Some(event) = events.next().await? {
        match event {
            EvalEvent::Stdout(text) => {
                said.stdout.add(text.as_bytes());
                progress.output(text.as_bytes()).await;
            }
            EvalEvent::Stderr(text) => {
                said.stderr.add(text.as_bytes());
                progress.output(text.as_bytes()).await;
            }
            EvalEvent::Result(shown) => said.show(shown),
            EvalEvent::Raised(error) => said.error = Some(error),
            EvalEvent::Ended { timed_out, truncated } => {
                said.truncated |= truncated;
                return Ok(End { exit_code: None, timed_out });
            }
            EvalEvent::Error(error) => return Err(error.into()),
        }
    }
    Err(ClientError::CutOff)
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

/// The beginning and the end of a stream: errors are most often the last that is said.
#[derive(Debug, Default)]
struct Kept {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    /// How many bytes were between them.
    left_out: usize,
}

impl Kept {
    fn add(&mut self, piece: &[u8]) {
        let (begin, rest) = piece.split_at(piece.len().min(MAX_END - self.head.len()));
        self.head.extend_from_slice(begin);
        // What alone is longer than the tail takes no room before it is dropped.
        let (skipped, rest) = rest.split_at(rest.len().saturating_sub(MAX_END));
        let surplus = (self.tail.len() + rest.len()).saturating_sub(MAX_END);
        self.tail.drain(..surplus);
        self.tail.extend(rest);
        self.left_out += skipped.len() + surplus;
    }

    /// Its text, with a line where something is missing, and how many bytes that is.
    fn text(self) -> (String, usize) {
        let Kept { head: mut bytes, tail, left_out } = self;
        if left_out > 0 {
            bytes.extend_from_slice(left_out_line(left_out).as_bytes());
        }
        bytes.extend(tail);
        let text = String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        (text, left_out)
    }
}

/// A value, as a model is shown it.
#[derive(Debug)]
enum Shown {
    Picture(Picture),
    Text(String),
}

impl Shown {
    /// Nothing if a model can be shown none of its types.
    fn of(mut types: BTreeMap<String, String>) -> Option<Shown> {
        if let Some(mime_type) = PICTURES.iter().find(|mime_type| types.contains_key(**mime_type)) {
            let data = types.remove(*mime_type)?.split_whitespace().collect();
            return Some(Shown::Picture(Picture { data, mime_type: (*mime_type).to_owned() }));
        }
        TEXTS.iter().find_map(|mime_type| types.remove(*mime_type)).map(Shown::Text)
    }

    /// Bytes that keeping it takes: many empty values are much, too.
    fn size(&self) -> usize {
        size_of::<Shown>()
            + match self {
                Shown::Picture(picture) => picture.data.len(),
                Shown::Text(text) => text.len(),
            }
    }
}

/// What a program has said until now, as much of it as is kept.
#[derive(Debug, Default)]
struct Said {
    stdout: Kept,
    stderr: Kept,
    shown: Vec<Shown>,
    /// The size of all that is shown.
    size: usize,
    /// The value of the last expression, which comes last, wherever it was told.
    main: Option<Shown>,
    error: Option<EvalError>,
    truncated: bool,
}

impl Said {
    /// The value of the last expression has room before what was only displayed.
    fn show(&mut self, Displayed { data, main }: Displayed) {
        let Some(shown) = Shown::of(data) else { return };
        self.size += shown.size();
        if main {
            self.size -= self.main.replace(shown).map_or(0, |before| before.size());
        } else {
            self.shown.push(shown);
        }
        while self.size > MAX_OUTPUT
            && let Some(last) = self.shown.pop()
        {
            self.size -= last.size();
            self.truncated = true;
        }
    }

    fn outcome(self) -> Outcome {
        let Said { stdout, stderr, shown, size: _, main, error, truncated } = self;
        let ((stdout, stdout_left_out), (stderr, stderr_left_out)) = (stdout.text(), stderr.text());
        let mut outcome = Outcome {
            stdout,
            stderr,
            stdout_left_out,
            stderr_left_out,
            truncated,
            error,
            ..Default::default()
        };
        for shown in shown.into_iter().chain(main) {
            match shown {
                Shown::Picture(picture) => outcome.pictures.push(picture),
                Shown::Text(text) => outcome.values.push(text),
            }
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(main: bool, pairs: &[(&str, &str)]) -> Displayed {
        let data = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Displayed { data, main }
    }

    #[test]
    fn values_are_pictures_or_text() {
        let mut said = Said::default();
        said.show(value(true, &[("text/plain", "3")]));
        said.show(value(false, &[("image/png", "aGk=\n"), ("text/plain", "<Figure>")]));
        said.show(value(false, &[("text/html", "<b>"), ("text/plain", "bold")]));
        said.show(value(false, &[("application/x-unknown", "?")]));
        let outcome = said.outcome();
        assert_eq!(outcome.pictures, [Picture { data: "aGk=".into(), mime_type: "image/png".into() }]);
        assert_eq!(outcome.values, ["bold", "3"]);
        assert_eq!((outcome.status().as_str(), outcome.succeeded()), ("finished", true));
    }

    #[test]
    fn values_are_kept_up_to_their_bound_and_the_last_expression_first() {
        let mut said = Said::default();
        said.show(value(false, &[("text/plain", "early")]));
        said.show(value(false, &[("image/png", &"a".repeat(MAX_OUTPUT - 2 * size_of::<Shown>() - 5))]));
        assert!(!said.truncated && said.shown.len() == 2);
        said.show(value(false, &[("text/plain", "late")]));
        assert!(said.truncated && said.shown.len() == 2);
        said.show(value(true, &[("text/plain", "42")]));
        let outcome = said.outcome();
        assert!(outcome.truncated && outcome.pictures.is_empty());
        assert_eq!(outcome.values, ["early", "42"]);
    }

    #[test]
    fn an_outcome_is_told_in_sections() {
        let error =
            EvalError { name: "ValueError".into(), value: "no".into(), traceback: "Traceback\n  x\n".into() };
        let mut outcome = Outcome {
            stdout: "out".into(),
            stderr: "err\n".into(),
            error: Some(error),
            truncated: true,
            ..Default::default()
        };
        assert_eq!(
            outcome.take_text(),
            "out\n[stderr]\nerr\n[error]\nTraceback\n  x\n[note]\nThere was more output than is kept."
        );
        assert_eq!((outcome.status().as_str(), outcome.succeeded()), ("raised ValueError", false));
        let mut failed = Outcome { exit_code: Some(3), ..Default::default() };
        assert_eq!((failed.status().as_str(), failed.take_text().as_str()), ("exit code 3", ""));
    }

    #[test]
    fn streams_are_kept_whole_up_to_their_bound() {
        let mut kept = Kept::default();
        kept.add(&vec![b'x'; 2 * MAX_END - 1]);
        kept.add(b"y");
        let (text, left_out) = kept.text();
        assert_eq!((text.len(), left_out), (2 * MAX_END, 0));
        assert!(text.ends_with("xy"));
        let odd = Kept { head: vec![b'a', 0xff], ..Default::default() };
        assert_eq!(odd.text(), ("a\u{fffd}".to_owned(), 0));
    }

    #[test]
    fn the_beginning_and_the_end_of_a_longer_stream_are_kept() {
        for pieces in [1, 7, 4 * MAX_END] {
            let mut stream = vec![b'x'; 4 * MAX_END];
            stream[..6].copy_from_slice(b"begin\n");
            let length = stream.len();
            stream[length - 5..].copy_from_slice(b"error");
            let mut kept = Kept::default();
            for piece in stream.chunks(length.div_ceil(pieces).max(1000)) {
                kept.add(piece);
            }
            let mut said = Said { stdout: kept, ..Default::default() };
            said.stderr.add(b"done");
            let mut outcome = said.outcome();
            assert_eq!(outcome.left_out(), 2 * MAX_END);
            let text = outcome.take_text();
            assert!(text.starts_with("begin\n") && text.ends_with("xerror\n[stderr]\ndone"));
            assert!(text.contains(&format!("x\n[... {} bytes left out ...]\nx", 2 * MAX_END)));
            assert!(text.len() <= MAX_OUTPUT);
        }
    }
}
