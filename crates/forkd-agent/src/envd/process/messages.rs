//! The messages of the service, as protobuf's JSON.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::children::{Exit, Size};
use crate::connect::json::{Base64, Number, or_default};
use crate::connect::{ConnectError, message};

/// What a silent stream of a process says.
pub const KEEPALIVE: &[u8] = br#"{"event":{"keepalive":{}}}"#;

#[derive(Debug, Deserialize)]
pub struct StartRequest {
    pub process: ProcessConfig,
    #[serde(default)]
    pub pty: Option<Pty>,
    #[serde(default)]
    pub tag: Option<String>,
    /// Absent in old clients, which could always write.
    #[serde(default)]
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

#[derive(Debug, Deserialize)]
pub struct Pty {
    #[serde(default)]
    size: Option<PtySize>,
}

#[derive(Debug, Default, Deserialize)]
struct PtySize {
    #[serde(default, deserialize_with = "or_default")]
    cols: Number,
    #[serde(default, deserialize_with = "or_default")]
    rows: Number,
}

impl Pty {
    /// A size that is not given, or that no terminal has, is refused or the usual one.
    pub fn size(&self) -> Result<Size, ConnectError> {
        let Some(size) = &self.size else { return Ok(Size { columns: 80, rows: 24 }) };
        let side = |number: Number| {
            u16::try_from(number.0)
                .map_err(|_| ConnectError::invalid("a terminal has at most 65535 columns and rows"))
        };
        Ok(Size { columns: side(size.cols)?, rows: side(size.rows)? })
    }
}

/// A process by its number or its tag.
#[derive(Debug, Default, Deserialize)]
pub struct Selector {
    #[serde(default)]
    pub pid: Option<Number>,
    #[serde(default)]
    pub tag: Option<String>,
}

/// A request that only names a process.
#[derive(Debug, Deserialize)]
pub struct SelectRequest {
    pub process: Selector,
}

#[derive(Debug, Deserialize)]
pub struct SendInputRequest {
    pub process: Selector,
    #[serde(default, deserialize_with = "or_default")]
    pub input: ProcessInput,
}

#[derive(Debug, Default, Deserialize)]
pub struct ProcessInput {
    #[serde(default)]
    pub stdin: Option<Base64>,
    #[serde(default)]
    pub pty: Option<Base64>,
}

/// One of the three.
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

#[derive(Debug, Deserialize)]
pub struct SendSignalRequest {
    pub process: Selector,
    #[serde(default)]
    pub signal: serde_json::Value,
}

#[derive(Debug, Deserialize)]
pub struct UpdateRequest {
    pub process: Selector,
    #[serde(default)]
    pub pty: Option<Pty>,
}

#[derive(Debug, Serialize)]
pub struct ListResponse {
    pub processes: Vec<ProcessInfo>,
}

#[derive(Debug, Serialize)]
pub struct ProcessInfo {
    pub config: ProcessConfig,
    pub pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct Empty {}

/// Which stream a chunk of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
    Pty,
}

pub fn start_event(pid: u32) -> Bytes {
    message(json!({ "event": { "start": { "pid": pid } } }).to_string().as_bytes())
}

pub fn data_event(stream: Stream, data: &[u8]) -> Bytes {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Pty => "pty",
    };
    // Nothing in it needs escaping.
    let mut json = format!(r#"{{"event":{{"data":{{"{name}":""#);
    STANDARD.encode_string(data, &mut json);
    json.push_str(r#""}}}"#);
    message(json.as_bytes())
}

pub fn end_event(exit: Exit) -> Bytes {
    let status = exit.describe();
    let mut end = match exit {
        Exit::Code(code) => json!({ "exitCode": code, "exited": true, "status": status }),
        Exit::Signal(_) => json!({ "exitCode": -1, "exited": false, "status": status }),
    };
    if exit != Exit::Code(0) {
        end["error"] = status.into();
    }
    message(json!({ "event": { "end": end } }).to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn payload(envelope: &Bytes) -> Value {
        serde_json::from_slice(&envelope[5..]).unwrap()
    }

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
        assert_eq!(request.pty.unwrap().size().unwrap(), Size { columns: 80, rows: 24 });
        let wide: Pty = serde_json::from_str(r#"{"size":{"cols":70000,"rows":1}}"#).unwrap();
        assert!(wide.size().is_err());
    }

    #[test]
    fn events() {
        assert_eq!(payload(&start_event(7)), json!({"event": {"start": {"pid": 7}}}));
        assert_eq!(
            payload(&data_event(Stream::Stderr, b"hi")),
            json!({"event": {"data": {"stderr": "aGk="}}})
        );
        let end = |exit| payload(&end_event(exit))["event"]["end"].clone();
        assert_eq!(end(Exit::Code(0)), json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        assert_eq!(end(Exit::Code(3))["error"], "exit status 3");
        let killed =
            json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"});
        assert_eq!(end(Exit::Signal(9)), killed);
        assert!(serde_json::from_slice::<Value>(KEEPALIVE).is_ok());
    }
}
