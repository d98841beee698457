//! Short commands of the host with a limit on their time.

use std::io::{self, Read, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What is kept of each stream.
const KEPT: u64 = 1 << 20;

/// How a command ended, and what it said.
#[derive(Debug)]
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// The last line on stderr, or the exit status if stderr is empty.
    pub fn complaint(&self) -> String {
        let last = self.stderr.lines().rev().find(|line| !line.trim().is_empty());
        last.map_or_else(|| self.status.to_string(), |line| line.trim().to_owned())
    }
}

/// The command was ended.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{program} did not start")]
    Start { program: String, source: io::Error },
    #[error("{program} did not end within {} s", limit.as_secs())]
    TimedOut { program: String, limit: Duration },
    #[error("{program} was ended: the request was cancelled")]
    Cancelled { program: String },
    #[error("cannot talk to {program}")]
    Pipe { program: String, source: io::Error },
}

/// Runs a command, keeps the beginning of what it says, feeds it `input` and ends it after `limit`.
pub fn run(command: &mut Command, input: &str, limit: Duration) -> Result<Outcome, CommandError> {
    run_unless(command, input, limit, &|| false)
}

/// The same, and ends it when the request is cancelled.
pub fn run_unless(
    command: &mut Command,
    input: &str,
    limit: Duration,
    unwanted: &dyn Fn() -> bool,
) -> Result<Outcome, CommandError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let start = |source| CommandError::Start { program: program.clone(), source };
    let pipe = |source| CommandError::Pipe { program: program.clone(), source };

    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(start)?;
    let mut stdin = child.stdin.take();
    let reader = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            if let Some(mut stream) = stream {
                stream.by_ref().take(KEPT).read_to_end(&mut text)?;
                // The rest is read too: a command whose reader has gone would be killed by its next word.
                io::copy(&mut stream, &mut io::sink())?;
            }
            Ok(String::from_utf8_lossy(&text).into_owned())
        })
    };
    let stdout = reader(child.stdout.take().map(|stream| Box::new(stream) as _));
    let stderr = reader(child.stderr.take().map(|stream| Box::new(stream) as _));
    if let Some(stdin) = &mut stdin {
        match stdin.write_all(input.as_bytes()) {
            // A command that ends without reading its input says why in its own words.
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(pipe(error)),
            _ => {}
        }
    }
    drop(stdin);

    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(pipe)? {
            break status;
        }
        let late = begun.elapsed() > limit;
        if late || unwanted() {
            child.kill().map_err(pipe)?;
            child.wait().map_err(pipe)?;
            return Err(match late {
                true => CommandError::TimedOut { program, limit },
                false => CommandError::Cancelled { program },
            });
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let collect = |reader: std::thread::JoinHandle<io::Result<String>>| {
        reader.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())).map_err(pipe)
    };
    Ok(Outcome { status, stdout: collect(stdout)?, stderr: collect(stderr)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn output_and_status_come_back() {
        let mut command = Command::new("sh");
        let outcome = run(command.args(["-c", "cat; echo oops >&2; exit 3"]), "hello", LONG).unwrap();
        assert_eq!(outcome.status.code(), Some(3));
        assert_eq!(outcome.stdout, "hello");
        assert_eq!(outcome.complaint(), "oops");
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let error = run(Command::new("sleep").arg("600"), "", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }));
    }

    #[test]
    fn a_command_that_nobody_wants_any_more_is_ended() {
        let error = run_unless(Command::new("sleep").arg("600"), "", LONG, &|| true).unwrap_err();
        assert!(matches!(error, CommandError::Cancelled { .. }));
    }

    #[test]
    fn a_command_that_ignores_its_input_is_no_error() {
        let input = "x".repeat(1 << 20);
        assert!(run(&mut Command::new("true"), &input, LONG).unwrap().status.success());
    }

    #[test]
    fn a_command_that_says_more_than_is_kept_goes_on() {
        let mut command = Command::new("sh");
        let outcome = run(command.args(["-c", "head -c 3000000 /dev/zero; echo end >&2"]), "", LONG).unwrap();
        assert!(outcome.status.success(), "{}", outcome.status);
        assert_eq!((outcome.stdout.len() as u64, outcome.stderr.as_str()), (KEPT, "end\n"));
    }
}
