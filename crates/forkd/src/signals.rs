//! Ctrl-C and its like, for verbs that have something to undo or to pass on.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CliError;

/// The signals that ask a command to end. Once this exists, none of them ends the process.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    window: Signal,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// Ctrl-C.
    Interrupt,
    Terminate,
    /// The terminal is gone.
    HangUp,
    /// The terminal has another size.
    Window,
}

impl Asked {
    /// The exit status of a command that it ended, as a shell has it.
    pub fn status(self) -> u8 {
        match self {
            Asked::Interrupt => 130,
            Asked::Terminate => 143,
            Asked::HangUp => 129,
            Asked::Window => 1,
        }
    }
}

impl Signals {
    pub fn new() -> Result<Signals, CliError> {
        let stream = |kind| signal(kind).map_err(|error| CliError::Io("wait for signals", error));
        Ok(Signals {
            interrupt: stream(SignalKind::interrupt())?,
            terminate: stream(SignalKind::terminate())?,
            hangup: stream(SignalKind::hangup())?,
            window: stream(SignalKind::window_change())?,
        })
    }

    /// The next one. Nothing is lost if waiting for it is given up.
    pub async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::Interrupt,
            _ = self.terminate.recv() => Asked::Terminate,
            _ = self.hangup.recv() => Asked::HangUp,
            _ = self.window.recv() => Asked::Window,
        }
    }

    /// The next one that asks for an end.
    pub async fn end(&mut self) -> Asked {
        loop {
            match self.next().await {
                Asked::Window => {}
                asked => return asked,
            }
        }
    }
}
