//! The daemon in a machine: started over ssh, reached through a port that QEMU forwards.
//!
//! To the machine, clients of that port come from the network, so the daemon there requires a token. The host
//! keeps one in the machine's directory.

use std::fs;
use std::io;
use std::time::Duration;

use forkd_host::command::{self, CommandError};

use crate::files::{self, FileError};
use crate::machine::Machine;
use crate::status::NotRunning;

const SCRIPT: &str = include_str!("../guest/daemon");
/// Where the host's token is, in the machine's directory.
const TOKEN: &str = "token";
/// A daemon that recovers a thousand sandboxes in an emulator takes a while.
const LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("the machine's daemon did not start: {0}")]
    Failed(String),
    #[error("the machine did not create a token")]
    NoToken,
    #[error(transparent)]
    File(#[from] FileError),
}

/// How the daemon of a machine is reached from this host.
#[derive(Clone)]
pub struct DaemonAddress {
    /// On the loopback address, in plain HTTP.
    pub port: u16,
    /// Opens everything.
    pub token: String,
}

impl std::fmt::Debug for DaemonAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("DaemonAddress").field("port", &self.port).finish_non_exhaustive()
    }
}

impl Machine {
    /// Where the daemon of this running machine listens, once it was started by [`Machine::start_daemon`].
    pub fn daemon(&self) -> Result<Option<DaemonAddress>, DaemonError> {
        let port = self.ports()?.api;
        Ok(self.token()?.map(|token| DaemonAddress { port, token }))
    }

    /// Starts the daemon unless it runs, and waits until it answers.
    pub fn start_daemon(&self) -> Result<DaemonAddress, DaemonError> {
        let port = self.ports()?.api;
        let known = self.token()?;
        let mode = if known.is_some() { "known-token" } else { "new-token" };
        let words = ["sh", "-c", SCRIPT, "daemon", mode].map(String::from);
        let outcome = command::run(&mut self.exec(&words)?, "", LIMIT)?;
        if !outcome.status.success() {
            return Err(DaemonError::Failed(outcome.stderr.trim().to_owned()));
        }
        let token = match known {
            Some(token) => token,
            None => {
                let token = outcome.stdout.trim().to_owned();
                if token.is_empty() || token.contains(char::is_whitespace) {
                    return Err(DaemonError::NoToken);
                }
                files::write(&self.file(TOKEN), token.as_bytes())?;
                token
            }
        };
        Ok(DaemonAddress { port, token })
    }

    fn token(&self) -> Result<Option<String>, FileError> {
        let path = self.file(TOKEN);
        match fs::read_to_string(&path) {
            Ok(token) => Ok(Some(token.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(FileError::at("read", &path)(error)),
        }
    }
}
