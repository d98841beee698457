//! This command's own terminal.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use forkd_api::exec::TerminalSize;
use rustix::fs::{fstat, major, minor};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// The size of the terminal, if there is one.
pub fn size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin())).ok()?;
    // A terminal that does not know its size says zero.
    (size.ws_col > 0 && size.ws_row > 0).then_some(TerminalSize { cols: size.ws_col, rows: size.ws_row })
}

/// Whether there is something to read on stdin: not a terminal, and not /dev/null.
pub fn stdin_is_given() -> bool {
    let stdin = io::stdin();
    if stdin.is_terminal() {
        return false;
    }
    // Closed, or the device 1:3.
    fstat(stdin.as_fd()).is_ok_and(|stat| {
        !is_character_device(stat.st_mode) || (major(stat.st_rdev), minor(stat.st_rdev)) != (1, 3)
    })
}

fn is_character_device(mode: u32) -> bool {
    rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::CharacterDevice
}

/// A terminal that gives every key as it is, until this is dropped.
#[derive(Debug)]
pub struct Raw {
    terminal: File,
    before: Termios,
}

impl Raw {
    /// Nothing if stdin is no terminal.
    pub fn new() -> io::Result<Option<Raw>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let terminal = File::from(stdin.as_fd().try_clone_to_owned()?);
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Flush, &raw)?;
        Ok(Some(Raw { terminal, before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}
