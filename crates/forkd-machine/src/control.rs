//! The machine's heartbeat and off switch: a script on its second serial port (`guest/control`), at real-time priority.
//! Silence there means that the machine is gone, not that it is busy.

use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::socket;

/// The socket's name in the machine's directory.
pub(crate) const SOCKET: &str = "control.sock";

const MAX_LINE: u64 = 1000;
/// Lines that may come before the answer: answers to earlier requests whose senders have left.
const MAX_STALE: usize = 100;

/// One heartbeat.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pulse {
    /// How long the machine's kernel has been up.
    pub uptime_seconds: f64,
    /// Its load average over a minute.
    pub load: f64,
    /// How long the answer took.
    pub latency_ms: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the machine's heartbeat has stopped")]
    Io(#[from] io::Error),
    #[error("invalid heartbeat of the machine: {0:?}")]
    Garbled(String),
}

/// Asks for a heartbeat; no answer within `limit` is an error.
pub(crate) fn ping(directory: &Path, limit: Duration) -> Result<Pulse, ControlError> {
    let begun = Instant::now();
    let answer = ask(directory, "ping", "pong", limit)?;
    let mut numbers = answer.split(' ').map(str::parse::<f64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(uptime_seconds)), Some(Ok(load))) if uptime_seconds.is_finite() && load.is_finite() => {
            Ok(Pulse { uptime_seconds, load, latency_ms: begun.elapsed().as_secs_f64() * 1e3 })
        }
        _ => Err(ControlError::Garbled(answer)),
    }
}

/// Asks the machine to shut down; it has understood when this returns.
pub(crate) fn power_off(directory: &Path, limit: Duration) -> Result<(), ControlError> {
    ask(directory, "poweroff", "bye", limit).map(drop)
}

/// Sends `verb ID` and returns what follows `reply ID` in the answer.
fn ask(directory: &Path, verb: &str, reply: &str, limit: Duration) -> Result<String, ControlError> {
    let id = request_id();
    let deadline = Instant::now() + limit;
    let mut stream = socket::connect(directory, SOCKET, limit)?;
    // The newline in front ends whatever half a line an earlier sender may have left.
    stream.write_all(format!("\n{verb} {id}\n").as_bytes())?;
    let mut reader = BufReader::new(stream);
    for _ in 0..MAX_STALE {
        let line = read_line_before(&mut reader, deadline)?;
        let mut words = line.splitn(3, ' ');
        if (words.next(), words.next()) == (Some(reply), Some(&id)) {
            return Ok(words.next().unwrap_or_default().to_owned());
        }
    }
    Err(ControlError::Garbled("no matching answer".into()))
}

/// Tells one request from another, also across processes: a serial line keeps answers that were not read.
fn request_id() -> String {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{:x}-{:x}-{:x}", std::process::id(), time, COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// The serial line delivers byte by byte, so the limit is on the line, not on each read.
fn read_line_before(reader: &mut BufReader<UnixStream>, deadline: Instant) -> io::Result<String> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    reader.get_ref().set_read_timeout(Some(left))?;
    socket::read_line(reader, MAX_LINE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A machine that answers one request with what `answer` makes of it.
    fn machine(answer: impl Fn(&str) -> String + Send + 'static) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(SOCKET)).unwrap();
        std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            while let Ok(line) = socket::read_line(&mut reader, MAX_LINE) {
                if !line.is_empty() {
                    let _ = reader.get_mut().write_all(answer(&line).as_bytes());
                }
            }
        });
        directory
    }

    #[test]
    fn the_right_answer_is_found_among_stale_ones() {
        let directory = machine(|line| {
            let id = line.strip_prefix("ping ").unwrap();
            format!("pong old-1 9.9 0.1\nnoise\npong {id} 12.50 0.75\n")
        });
        let pulse = ping(directory.path(), Duration::from_secs(20)).unwrap();
        assert_eq!((pulse.uptime_seconds, pulse.load), (12.5, 0.75));
    }

    #[test]
    fn silence_and_garbage_are_errors() {
        let silent = machine(|_| String::new());
        assert!(matches!(ping(silent.path(), Duration::from_millis(100)), Err(ControlError::Io(_))));
        let garbled = machine(|line| format!("pong {} often sometimes\n", &line[5..]));
        assert!(matches!(ping(garbled.path(), Duration::from_secs(20)), Err(ControlError::Garbled(_))));
        let endless = machine(|_| "pong x 1 1\n".repeat(200));
        assert!(matches!(ping(endless.path(), Duration::from_secs(20)), Err(ControlError::Garbled(_))));
        let nobody = tempfile::tempdir().unwrap();
        assert!(matches!(ping(nobody.path(), Duration::from_secs(1)), Err(ControlError::Io(_))));
    }
}
