//! What to start, and as whom.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crate::users::User;
use forkd_envd::process::TerminalSize;

/// A process to be started. It has a process group of its own, which it leads if it has a terminal.
#[derive(Debug)]
pub struct Spec {
    pub program: OsString,
    pub arguments: Vec<OsString>,
    /// All of it: nothing is inherited. A program without a slash is looked for in its `PATH`.
    pub environment: Vec<(OsString, OsString)>,
    pub directory: PathBuf,
    pub user: User,
    pub stdio: Stdio,
}

#[derive(Debug)]
pub enum Stdio {
    Streams {
        input: Source,
        output: Target,
        error: Target,
    },
    /// All three are a terminal, which is the controlling one of the session.
    Terminal(TerminalSize),
}

#[derive(Debug)]
pub enum Source {
    Null,
    Pipe,
    Descriptor(OwnedFd),
}

#[derive(Debug)]
pub enum Target {
    Null,
    Pipe,
    Descriptor(OwnedFd),
}
