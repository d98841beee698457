//! A Firecracker process: started, asked over its socket, ended with its owner.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::api;
use crate::engine::process::Failure;

/// No step takes longer, on the slowest host.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks whether something is there. Firecracker listens milliseconds after its start; looking ten times as
/// often finds it no sooner and takes time from it.
const GLANCE: Duration = Duration::from_micros(500);
/// How much of what was said last is read.
const LAST_WORDS: u64 = 4096;

/// A process that has begun to listen on its API socket.
#[derive(Debug)]
pub(super) struct Process {
    running: Running,
    stream: UnixStream,
}

impl Process {
    /// Starts the program. What it and its guest say is added to the log.
    pub(super) fn start(program: &Path, socket: &Path, log: &Path) -> Result<Process, Failure> {
        let mut running = Running::spawn(program, socket, log)?;
        let stream = running.wait_for("listens", || match UnixStream::connect(socket) {
            Ok(stream) => Ok(Some(stream)),
            // Not made yet, or made and not listened on yet.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        })?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Process { running, stream })
    }

    /// A request that must be carried out.
    pub(super) fn must(&mut self, method: &str, target: &str, body: &Value) -> Result<(), Failure> {
        api::request(&mut self.stream, method, target, body)
            .map_err(|error| self.running.failure(&format!("{method} {target}: {error}")))
    }

    /// Waits until the guest has said this.
    pub(super) fn wait_for_words(&mut self, words: &str) -> Result<(), Failure> {
        let log = self.running.log.clone();
        self.running
            .wait_for("has a guest that is ready", || Ok(last_words(&log)?.contains(words).then_some(())))
    }

    /// Asks the process to end, and does not wait until it has.
    pub(super) fn kill(&mut self) {
        self.running.kill();
    }
}

#[derive(Debug)]
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn spawn(program: &Path, socket: &Path, log: &Path) -> Result<Running, Failure> {
        let output = File::options().create(true).append(true).open(log)?;
        let child = Command::new(program)
            .arg("--api-sock")
            .arg(socket)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .map_err(|error| format!("{} does not start: {error}", program.display()))?;
        Ok(Running { child, log: log.into() })
    }

    fn wait_for<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut() -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if let Some(status) = self.child.try_wait()? {
                return Err(self.failure(&format!("ended before it {what}, with {status}")));
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.failure(&format!("it is not so after {PATIENCE:?} that it {what}")));
            }
            sleep(GLANCE);
        }
    }

    fn failure(&self, why: &str) -> Failure {
        let words = last_words(&self.log).unwrap_or_default();
        format!("Firecracker: {why}; it said:\n{}", words.trim()).into()
    }

    fn kill(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

fn last_words(log: &Path) -> Result<String, Failure> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORDS)))?;
    let mut words = Vec::new();
    file.take(LAST_WORDS).read_to_end(&mut words)?;
    Ok(String::from_utf8_lossy(&words).into_owned())
}
