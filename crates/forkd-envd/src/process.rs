//! `process.Process`: starting processes, and talking to them. Messages as protobuf's JSON.

mod event;

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::connect::ConnectError;
use crate::json::{Base64, Number, or_default};
use crate::signal::Signal;

pub use event::{
    Data, End, EventMessage, KEEPALIVE, ProcessEvent, Started, Stream, data_event, end_event, start_event,
};

pub const START: &str = "/process.Process/Start";
pub const CONNECT: &str = "/process.Process/Connect";
pub const LIST: &str = "/process.Process/List";
pub const SEND_INPUT: &str = "/process.Process/SendInput";
pub const STREAM_INPUT: &str = "/process.Process/StreamInput";
pub const CLOSE_STDIN: &str = "/process.Process/CloseStdin";
pub const SEND_SIGNAL: &str = "/process.Process/SendSignal";
pub const UPDATE: &str = "/process.Process/Update";

#[derive(Debug, Serialize, Deserialize)]
pub struct StartRequest {
    pub process: ProcessConfig,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Absent in old clients, which could always write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ProcessConfig {
    #[serde(default, deserialize_with = "or_default")]
    pub cmd: String,
    #[serde(default, deserialize_with = "or_default")]
    pub args: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub envs: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A terminal.
#[derive(Debug, Serialize, Deserialize)]
pub struct Pty {
    #[serde(default)]
    size: Option<PtySize>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct PtySize {
    #[serde(default, deserialize_with = "or_default")]
    cols: Number,
    #[serde(default, deserialize_with = "or_default")]
    rows: Number,
}

/// The size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

impl From<TerminalSize> for Pty {
    fn from(size: TerminalSize) -> Pty {
        Pty { size: Some(PtySize { cols: Number(size.columns.into()), rows: Number(size.rows.into()) }) }
    }
}

impl Pty {
    /// 80 columns and 24 rows if none is given. More than a terminal can have is refused.
    pub fn size(&self) -> Result<TerminalSize, ConnectError> {
        let Some(size) = &self.size else { return Ok(TerminalSize { columns: 80, rows: 24 }) };
        let side = |number: Number| {
            u16::try_from(number.0)
                .map_err(|_| ConnectError::invalid("a terminal has at most 65535 columns and rows"))
        };
        Ok(TerminalSize { columns: side(size.cols)?, rows: side(size.rows)? })
    }
}

/// A process by its number or its tag.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Selector {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<Number>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

impl Selector {
    pub fn pid(pid: u32) -> Selector {
        Selector { pid: Some(Number(pid)), tag: None }
    }
}

/// A request that only names a process.
#[derive(Debug, Serialize, Deserialize)]
pub struct SelectRequest {
    pub process: Selector,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SendInputRequest {
    pub process: Selector,
    #[serde(default, deserialize_with = "or_default")]
    pub input: ProcessInput,
}

/// One of the two.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ProcessInput {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Base64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Base64>,
}

impl ProcessInput {
    pub fn stdin(bytes: Bytes) -> ProcessInput {
        ProcessInput { stdin: Some(Base64(bytes)), pty: None }
    }

    pub fn pty(bytes: Bytes) -> ProcessInput {
        ProcessInput { stdin: None, pty: Some(Base64(bytes)) }
    }
}

/// One of the two, or a keepalive, which is neither.
#[derive(Debug, Deserialize)]
pub struct StreamInputRequest {
    #[serde(default)]
    pub start: Option<SelectRequest>,
    #[serde(default)]
    pub data: Option<StreamData>,
}

#[derive(Debug, Deserialize)]
pub struct StreamData {
    #[serde(default, deserialize_with = "or_default")]
    pub input: ProcessInput,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SendSignalRequest {
    pub process: Selector,
    /// A name or a number: see [`SendSignalRequest::signal`].
    #[serde(default)]
    signal: Value,
}

impl SendSignalRequest {
    pub fn new(process: Selector, signal: Signal) -> SendSignalRequest {
        SendSignalRequest { process, signal: signal.to_json() }
    }

    pub fn signal(&self) -> Result<Signal, ConnectError> {
        Signal::from_json(&self.signal).ok_or_else(|| {
            ConnectError::invalid(format!(
                "unknown signal {}: expected a name such as SIGNAL_SIGKILL",
                self.signal
            ))
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
pub struct UpdateRequest {
    pub process: Selector,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ListResponse {
    #[serde(default)]
    pub processes: Vec<ProcessInfo>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessInfo {
    pub config: ProcessConfig,
    pub pid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether it has a terminal. E2B's agent does not tell, nor do early ones of forkd.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_official_clients_send_is_read() {
        let request: StartRequest = serde_json::from_str(
            r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","ls"],"envs":{"A":"1"},"cwd":"/"},"stdin":false}"#,
        )
        .unwrap();
        assert_eq!((request.process.cmd.as_str(), request.stdin), ("/bin/bash", Some(false)));
        let request: StartRequest = serde_json::from_str(
            r#"{"process":{"cmd":"sh","args":null},"pty":{"size":{"cols":80,"rows":"24"}},"future":1}"#,
        )
        .unwrap();
        assert_eq!(request.pty.unwrap().size().unwrap(), TerminalSize { columns: 80, rows: 24 });
        let wide: Pty = serde_json::from_str(r#"{"size":{"cols":70000,"rows":1}}"#).unwrap();
        assert!(wide.size().is_err());
    }

    #[test]
    fn requests_are_written_as_the_official_clients_do() {
        let size = TerminalSize { columns: 132, rows: 50 };
        let update = UpdateRequest { process: Selector::pid(7), pty: Some(size.into()) };
        assert_eq!(
            serde_json::to_value(&update).unwrap(),
            json!({"process": {"pid": 7}, "pty": {"size": {"cols": 132, "rows": 50}}})
        );
        assert_eq!(update.pty.unwrap().size().unwrap(), size);
        let input = SendInputRequest {
            process: Selector::pid(7),
            input: ProcessInput::pty(Bytes::from_static(b"ls\n")),
        };
        assert_eq!(
            serde_json::to_value(&input).unwrap(),
            json!({"process": {"pid": 7}, "input": {"pty": "bHMK"}})
        );
        let signal = SendSignalRequest::new(Selector::pid(7), Signal::Hup);
        assert_eq!(
            serde_json::to_value(&signal).unwrap(),
            json!({"process": {"pid": 7}, "signal": "SIGNAL_SIGHUP"})
        );
        assert_eq!(signal.signal(), Ok(Signal::Hup));
        let odd: SendSignalRequest = serde_json::from_str(r#"{"process":{"tag":"x"}}"#).unwrap();
        assert!(odd.signal().is_err());
    }
}
