//! What a guest has printed on its console: the end of its log, and what is added to it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::blocking::in_place;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::process::descriptors::SERIAL_LOG;
use crate::sandbox::SandboxHandle;

/// How often the log is checked for new output: the VM process writes the file without notice.
const POLL: Duration = Duration::from_millis(200);
/// The most that is read of the log at once.
const PIECE: u64 = 256 << 10;
/// A log is never longer: `forkd-vmm` keeps 1 MiB of it.
const LONGEST: u64 = 2 << 20;
/// How much of what was read is remembered, to find the place again when the log was shortened.
const KNOWN: usize = 1024;

impl Engine {
    /// The last bytes that a guest has printed on its console.
    pub fn console(&self, id: &str, bytes: u64) -> Result<Vec<u8>, EngineError> {
        let path = self.console_path(id)?;
        let mut log = Log { path, begin: bytes, ..Log::default() };
        in_place(|| log.added(bytes)).map_err(failed)
    }

    /// The last bytes that a guest has printed on its console, and then what it prints until its sandbox ends.
    pub fn follow_console(&self, id: &str, bytes: u64) -> Result<Follower, EngineError> {
        let log = Log { path: self.console_path(id)?, begin: bytes, ..Log::default() };
        Ok(Follower { log, sandbox: self.sandbox(id)?, ended: false })
    }

    fn console_path(&self, id: &str) -> Result<PathBuf, EngineError> {
        Ok(self.shared.paths.sandbox(self.sandbox(id)?.view().id()).join(SERIAL_LOG))
    }
}

fn failed(error: io::Error) -> EngineError {
    EngineError::io("read the console")(error)
}

/// Follows the console of one sandbox.
#[derive(Debug)]
pub struct Follower {
    log: Log,
    sandbox: SandboxHandle,
    ended: bool,
}

impl Follower {
    /// What has been printed since the last call, once there is something; `None` after the end of the sandbox.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, EngineError> {
        loop {
            let added = in_place(|| self.log.added(PIECE)).map_err(failed)?;
            match added.is_empty() {
                false => return Ok(Some(added)),
                true if self.ended => return Ok(None),
                true => {}
            }
            tokio::select! {
                // What it printed before its end is read once more.
                _ = self.sandbox.end() => self.ended = true,
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }
}

/// A log that grows at its end. When it is full, its writer moves the newer half to the front.
#[derive(Debug, Default)]
struct Log {
    path: PathBuf,
    /// How many bytes before the end the first read begins.
    begin: u64,
    /// Up to where it was read.
    position: Option<u64>,
    /// The last bytes before that.
    known: Vec<u8>,
}

impl Log {
    /// What was added since the last call, or a first part of it.
    fn added(&mut self, most: u64) -> io::Result<Vec<u8>> {
        let Some(file) = open(&self.path)? else { return Ok(Vec::new()) };
        let length = file.metadata()?.len();
        let position = match self.position {
            None => length.saturating_sub(self.begin),
            Some(position) => self.place(&file, position, length)?,
        };
        if position == 0 {
            self.known.clear();
        }
        let added = read(&file, position, most)?;
        self.position = Some(position + added.len() as u64);
        self.known.extend_from_slice(&added);
        self.known.drain(..self.known.len().saturating_sub(KNOWN));
        Ok(added)
    }

    /// Where the bytes after `position` are now.
    fn place(&self, file: &File, position: u64, length: u64) -> io::Result<u64> {
        let known = self.known.len() as u64;
        if length >= position && read(file, position - known, known)? == self.known {
            return Ok(position);
        }
        if length > LONGEST {
            return Err(io::Error::other(format!(
                "the log has {length} bytes, more than a VM process keeps"
            )));
        }
        let whole = read(file, 0, length)?;
        let found = whole.windows(self.known.len().max(1)).rposition(|window| window == self.known);
        // So much was printed that what was read is gone: all that is left is new.
        Ok(found.map_or(0, |found| found as u64 + known))
    }
}

/// The log, unless the guest has printed nothing yet or the sandbox was removed.
fn open(path: &PathBuf) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// At most `most` bytes from a place on. The file may grow or shrink meanwhile.
fn read(file: &File, position: u64, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(most).map_err(io::Error::other)?];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], position + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn log(begin: u64) -> (tempfile::TempDir, Log) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(SERIAL_LOG);
        (directory, Log { path, begin, ..Log::default() })
    }

    #[test]
    fn only_what_is_new_is_read_again() {
        let (_directory, mut log) = log(4);
        assert_eq!(log.added(PIECE).unwrap(), b"");
        fs::write(&log.path, "ab\ncd\n").unwrap();
        assert_eq!(log.added(PIECE).unwrap(), b"\ncd\n");
        assert_eq!(log.added(PIECE).unwrap(), b"");
        fs::write(&log.path, "ab\ncd\nef").unwrap();
        assert_eq!(log.added(PIECE).unwrap(), b"ef");
        fs::remove_file(&log.path).unwrap();
        assert_eq!(log.added(PIECE).unwrap(), b"");
    }

    #[test]
    fn a_tail_is_at_most_so_long() {
        for (begin, tail) in [(4, "6789"), (100, "0123456789"), (0, "")] {
            let (_directory, mut log) = log(begin);
            fs::write(&log.path, "0123456789").unwrap();
            assert_eq!(log.added(begin).unwrap(), tail.as_bytes());
        }
    }

    #[test]
    fn the_place_is_found_again_in_a_log_that_was_shortened() {
        let (_directory, mut log) = log(u64::MAX);
        let lines: Vec<String> = (0..1000).map(|number| format!("line {number}\n")).collect();
        fs::write(&log.path, lines.concat()).unwrap();
        assert_eq!(log.added(PIECE).unwrap(), lines.concat().as_bytes());
        // Shorter than before.
        let later = format!("[mark]\n{}new\n", lines[500..].concat());
        fs::write(&log.path, &later).unwrap();
        assert_eq!(log.added(PIECE).unwrap(), b"new\n");
        // Shortened, and longer than before by now.
        let more = "x".repeat(20_000);
        fs::write(&log.path, format!("[mark]\nnew\n{more}")).unwrap();
        assert_eq!(log.added(PIECE).unwrap(), format!("[mark]\nnew\n{more}").as_bytes());
        fs::write(&log.path, format!("{}tail", &more[10..])).unwrap();
        assert_eq!(log.added(PIECE).unwrap(), b"tail");
        // Nothing of what was read is left.
        fs::write(&log.path, "all of it is new").unwrap();
        assert_eq!(log.added(PIECE).unwrap(), b"all of it is new");
        fs::write(&log.path, "all of it is new, and more").unwrap();
        assert_eq!(log.added(PIECE).unwrap(), b", and more");
        // Not what a VM process writes.
        File::create(&log.path).unwrap().set_len(LONGEST + 1).unwrap();
        assert!(log.added(PIECE).is_err());
    }
}
