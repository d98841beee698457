//! QEMU's own control socket (QMP): one JSON object a line, an answer to each command, events in between.

use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::ProcessName;
use crate::socket;

/// The socket's name in the machine's directory.
pub(crate) const SOCKET: &str = "qmp.sock";

const MAX_LINE: u64 = 4 << 20;
/// More lines than any command's answer has events before it.
const MAX_EVENTS: usize = 1000;

#[derive(Debug, thiserror::Error)]
pub enum QmpError {
    #[error("QEMU does not answer on its control socket")]
    Io(#[from] io::Error),
    #[error("QEMU answered {0:?}, which is not a QMP message")]
    Protocol(String),
    #[error("QEMU refused {command}: {reason}")]
    Refused { command: String, reason: String },
}

/// The QEMU that holds the control socket in a machine's directory, whether or not `run.json` knows of it.
pub(crate) fn owner(directory: &Path) -> Option<ProcessName> {
    socket::listener(directory, SOCKET).and_then(ProcessName::of)
}

#[derive(Debug)]
pub(crate) struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and goes through the greeting.
    pub fn connect(directory: &Path, limit: Duration) -> Result<Qmp, QmpError> {
        let stream = socket::connect(directory, SOCKET, limit)?;
        let mut qmp = Qmp { reader: BufReader::new(stream) };
        let greeting = qmp.read()?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::Protocol(greeting.to_string()));
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs one command and returns what it returned.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.reader.get_mut().write_all(line.as_bytes())?;
        for _ in 0..MAX_EVENTS {
            let mut answer = self.read()?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                let reason = error["desc"].as_str().unwrap_or("no reason given").to_owned();
                return Err(QmpError::Refused { command: command.into(), reason });
            }
        }
        Err(QmpError::Protocol("no answer, only events".into()))
    }

    /// Runs a command of QEMU's human monitor and returns its text.
    pub fn human(&mut self, command: &str) -> Result<String, QmpError> {
        let value = self.execute("human-monitor-command", json!({ "command-line": command }))?;
        value.as_str().map(str::to_owned).ok_or_else(|| QmpError::Protocol(value.to_string()))
    }

    fn read(&mut self) -> Result<Value, QmpError> {
        let line = socket::read_line(&mut self.reader, MAX_LINE)?;
        serde_json::from_str(&line).map_err(|_| QmpError::Protocol(line.chars().take(200).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    const LIMIT: Duration = Duration::from_secs(20);

    /// A QEMU that says these lines, whatever it hears.
    fn qemu(lines: &'static [&'static str]) -> (tempfile::TempDir, JoinHandle<()>) {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(SOCKET)).unwrap();
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            for (index, line) in lines.iter().enumerate() {
                if index > 0 && !line.contains("event") {
                    let _ = socket::read_line(&mut reader, 1000);
                }
                let _ = reader.get_mut().write_all(format!("{line}\r\n").as_bytes());
            }
        });
        (directory, thread)
    }

    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": []}}"#;

    #[test]
    fn events_are_skipped_and_refusals_have_reasons() {
        let (directory, thread) = qemu(&[
            GREETING,
            r#"{"return": {}}"#,
            r#"{"event": "RESUME"}"#,
            r#"{"return": "text"}"#,
            r#"{"error": {"class": "GenericError", "desc": "no such thing"}}"#,
        ]);
        let mut qmp = Qmp::connect(directory.path(), LIMIT).unwrap();
        assert_eq!(qmp.human("info").unwrap(), "text");
        let error = qmp.execute("nonsense", json!({})).unwrap_err();
        assert_eq!(error.to_string(), "QEMU refused nonsense: no such thing");
        thread.join().unwrap();
    }

    #[test]
    fn garbage_and_hang_ups_are_errors() {
        for lines in
            [&["hello"] as &[&str], &[r#"{"not": "QMP"}"#], &[GREETING], &[GREETING, "[]"], &[GREETING, "{"]]
        {
            let (directory, thread) = qemu(lines);
            assert!(Qmp::connect(directory.path(), LIMIT).is_err(), "{lines:?}");
            thread.join().unwrap();
        }
    }
}
