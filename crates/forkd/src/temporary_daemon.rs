//! A daemon for one command: started if none is running, with a socket that only this command knows, and ended with it.
//!
//! ```text
//!   forkd image pull ──▶ forkd serve --temporary DIRECTORY
//!         │  socket in DIRECTORY ═══▶ the API, as with any daemon
//!         └─ stdin, a pipe ─────────▶ closed when the command ends, however it does: the daemon stops and removes DIRECTORY
//! ```
//!
//! It does not listen at this host's own socket: a daemon there would answer for sandboxes, too, which on a host whose KVM cannot
//! run guests are the machine's.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forkd_client::{Address, Client};
use forkd_machine::Name;
use tempfile::TempDir;

use crate::daemon::{SOCKET, last_lines};
use crate::error::CliError;

/// How long it may take to answer.
const START: Duration = Duration::from_secs(60);
/// How long this command waits for its end. It cancels abandoned work well before.
const END: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(2);
/// How much is read of its log.
const MAX_LOG: u64 = 64 << 10;

/// Dropped, it ends; the drop does not wait for that.
#[derive(Debug)]
pub struct TemporaryDaemon {
    process: Child,
    /// It has no name, and is gone with both processes.
    log: File,
    _directory: TempDir,
}

impl TemporaryDaemon {
    /// Starts it and waits for its first answer.
    pub async fn start(machine: &Name) -> Result<(TemporaryDaemon, Client), CliError> {
        let failed = |error| CliError::Io("start a daemon", error);
        // The path of a socket must be short.
        let directory = tempfile::Builder::new().prefix("forkd-").tempdir().map_err(failed)?;
        let log = tempfile::tempfile().map_err(failed)?;
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("serve").arg("--temporary").arg(directory.path());
        command.args(["--machine", machine.as_str()]);
        if std::env::var_os("FORKD_LOG").is_none() {
            command.args(["--log", "warn"]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log.try_clone().map_err(failed)?);
        // A Ctrl-C is for this command, which ends the daemon when its request is given up.
        let process = command.process_group(0).spawn().map_err(failed)?;
        let client = Client::new(Address::Unix(directory.path().join(SOCKET)), None)?;
        let mut daemon = TemporaryDaemon { process, log, _directory: directory };
        let last_moment = Instant::now() + START;
        while client.health().await.is_err() {
            let ended = daemon.process.try_wait().map_err(failed)?.is_some();
            if ended || Instant::now() > last_moment {
                return Err(CliError::TemporaryDaemon { said: daemon.log() });
            }
            tokio::time::sleep(POLL).await;
        }
        Ok((daemon, client))
    }

    /// Ends it, which gives up what it does, and waits until nothing is left of that. Its clients must be dropped before.
    pub async fn end(mut self) {
        drop(self.process.stdin.take());
        let last_moment = Instant::now() + END;
        // The runtime closes connections meanwhile. A daemon that takes longer ends without anybody waiting for it.
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < last_moment {
            tokio::time::sleep(POLL).await;
        }
    }

    /// The last lines of its log.
    pub fn log(&self) -> String {
        let length = self.log.metadata().map_or(0, |metadata| metadata.len());
        let mut bytes = vec![0; usize::try_from(length.min(MAX_LOG)).unwrap_or_default()];
        // The daemon writes where this file descriptor's offset is, which must stay.
        match self.log.read_exact_at(&mut bytes, length.saturating_sub(MAX_LOG)) {
            Ok(()) => last_lines(&bytes),
            Err(_) => String::new(),
        }
    }
}
