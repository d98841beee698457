//! A program in a sandbox at this command's own stdin, stdout, stderr, terminal and signals.
//!
//! ```text
//!   stdin ──▶ thread ──▶ queue ──┐
//!   SIGINT, SIGTERM, SIGWINCH ───┴▶ task ──▶ the program ──▶ stdout, stderr, exit status
//! ```

use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use forkd_api::exec::{Exec, ExecEvent, ExecInput, ExecStart, Signal, TerminalSize};
use forkd_client::{Client, ClientError, Input, Output};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::commands::say;
use crate::error::CliError;
use crate::exit::Exit;
use crate::signals::{Asked, Signals};
use crate::terminal::{self, Raw};

/// How a program is connected to this terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// Whether it reads this command's stdin.
    pub stdin: bool,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// The size of a terminal that does not report one.
const USUAL: TerminalSize = TerminalSize { cols: 80, rows: 24 };
/// What is read from stdin at once, and how many of these wait to be sent.
const PIECE: usize = 64 << 10;
const QUEUE: usize = 8;
/// How a shell says that a program's reader was gone.
const BROKEN_PIPE: Exit = Exit::Other(128 + 13);
/// How long a program may take to be told that its reader is gone.
const FAREWELL: Duration = Duration::from_secs(2);

/// Runs a program to its end.
pub async fn run(
    client: &Client,
    id: &str,
    exec: &Exec,
    mode: Mode,
    signals: &mut Signals,
) -> Result<Exit, CliError> {
    let (input, output) = client.start(id, &begin(exec, mode)).await?;
    let ended = follow(input, output, mode, signals).await?;
    if ended.timed_out {
        say(&format!("forkd: the command was ended after {} s (--timeout)", exec.timeout_secs));
    }
    Ok(ended.exit)
}

/// How following a program came to its end.
#[derive(Debug, Clone, Copy)]
pub struct Ended {
    pub exit: Exit,
    pub timed_out: bool,
}

/// Follows a program to its end, with what is typed here as its input.
pub async fn follow(
    input: Input,
    mut output: Output,
    mode: Mode,
    signals: &mut Signals,
) -> Result<Ended, CliError> {
    let raw = match mode.tty && mode.stdin {
        true => Raw::new().map_err(|error| CliError::Io("use the terminal", error))?,
        false => None,
    };
    let (controls, received) = mpsc::unbounded_channel();
    let stdin = match mode {
        Mode { stdin: true, .. } => Some(read_stdin()),
        // A program on a terminal would take the end of its input for the user's farewell.
        Mode { tty: true, .. } => None,
        Mode { .. } => Some(mpsc::channel(1).1),
    };
    let sending = tokio::spawn(send(input, stdin, received));
    let mut asked_before = false;
    let ended = |exit| Ended { exit, timed_out: false };
    let ended = loop {
        let event = tokio::select! {
            event = output.next() => event?,
            asked = signals.next() => {
                match asked {
                    Asked::Window => {
                        if let Some(size) = terminal::size().filter(|_| mode.tty) {
                            let _ = controls.send(ExecInput::Resize(size));
                        }
                    }
                    // It was told already, and does not end.
                    _ if asked_before => break ended(Exit::Other(asked.status())),
                    _ => {
                        asked_before = true;
                        let _ = controls.send(ExecInput::Signal(signal(asked)));
                    }
                }
                continue;
            }
        };
        let written = match event {
            ExecEvent::Stdout(output) => write(&mut io::stdout(), &output.0),
            ExecEvent::Stderr(output) => write(&mut io::stderr(), &output.0),
            ExecEvent::Exited { exit_code, timed_out } => {
                drop(raw);
                break Ended { exit: Exit::of_guest(exit_code), timed_out };
            }
            // The others are between the daemon and the client.
            ExecEvent::Started { .. } | ExecEvent::StdinTaken { .. } | ExecEvent::Error(_) => Ok(()),
        };
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                // What a program would be told whose terminal is gone, which is what the agent has for it.
                let _ = controls.send(ExecInput::Signal(Signal::Hup));
                drop(controls);
                let _ = timeout(FAREWELL, sending).await;
                return Ok(ended(BROKEN_PIPE));
            }
            Err(error) => return Err(CliError::Io("write what the command prints", error)),
        }
    };
    sending.abort();
    Ok(ended)
}

fn begin(exec: &Exec, mode: Mode) -> ExecStart {
    let Exec { args, env, cwd, user, stdin, timeout_secs } = exec.clone();
    let tty = mode.tty.then(|| terminal::size().unwrap_or(USUAL));
    let timeout_secs = Some(timeout_secs);
    ExecStart { args, env, cwd, user, stdin, timeout_secs, tty, stdin_window: mode.stdin }
}

fn signal(asked: Asked) -> Signal {
    match asked {
        Asked::Interrupt => Signal::Int,
        Asked::Terminate => Signal::Term,
        Asked::HangUp | Asked::Window => Signal::Hup,
    }
}

fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Reads stdin in a thread that ends with it, or with the process.
fn read_stdin() -> mpsc::Receiver<Bytes> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                Ok(read @ 1..) => {
                    let bytes = Bytes::copy_from_slice(buffer.get(..read).unwrap_or_default());
                    if sender.blocking_send(bytes).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What cannot be read has no more to give.
                Ok(_) | Err(_) => return,
            }
        }
    });
    receiver
}

/// Sends what there is to send. Signals overtake what the program has not made room for.
async fn send(
    mut input: Input,
    mut stdin: Option<mpsc::Receiver<Bytes>>,
    mut controls: mpsc::UnboundedReceiver<ExecInput>,
) -> Result<(), ClientError> {
    let mut unsent = Bytes::new();
    loop {
        let next = async {
            match &mut stdin {
                Some(stdin) => stdin.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            control = controls.recv() => match control {
                Some(ExecInput::Resize(size)) => input.resize(size).await?,
                Some(ExecInput::Signal(signal)) => input.signal(signal).await?,
                Some(ExecInput::CloseStdin) => input.close_stdin().await?,
                None => return Ok(()),
            },
            () = input.room(unsent.len()), if !unsent.is_empty() => {
                input.stdin(std::mem::take(&mut unsent)).await?;
            }
            bytes = next, if unsent.is_empty() => match bytes {
                Some(bytes) => unsent = bytes,
                None => {
                    stdin = None;
                    input.close_stdin().await?;
                }
            },
        }
    }
}
