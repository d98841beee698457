//! Exit statuses.

use std::process::{ExitCode, ExitStatus};

/// How the command ended. Wrong usage is clap's, and is 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Success,
    Failure,
    /// That of the command that was run on the user's behalf.
    Other(u8),
}

impl Exit {
    /// The status of a program in a guest.
    pub fn of_guest(code: i32) -> Exit {
        match u8::try_from(code) {
            Ok(0) => Exit::Success,
            Ok(code) => Exit::Other(code),
            Err(_) => Exit::Failure,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        match exit {
            Exit::Success => ExitCode::SUCCESS,
            Exit::Failure => ExitCode::FAILURE,
            Exit::Other(status) => ExitCode::from(status),
        }
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        use std::os::unix::process::ExitStatusExt;
        // As a shell has it: a command ended by signal N is 128 + N.
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(0) => Exit::Success,
            Some(code) => Exit::Other(code),
            None => Exit::Failure,
        }
    }
}
