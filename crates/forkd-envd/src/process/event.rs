//! What a process does, as messages of the streams of `Start` and `Connect`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::connect::message;
use crate::exit::Exit;
use crate::json::Base64;

/// What a silent stream says.
pub const KEEPALIVE: &[u8] = br#"{"event":{"keepalive":{}}}"#;

/// One message of the stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventMessage {
    pub event: ProcessEvent,
}

/// One of these, or none: a keepalive, and what later agents say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessEvent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Started>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Data>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Started {
    pub pid: u32,
}

/// Output, of one of these.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Data {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Base64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Base64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct End {
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// -1 if a signal has ended it.
    exit_code: i32,
    exited: bool,
    status: String,
}

impl From<Exit> for End {
    fn from(exit: Exit) -> End {
        let status = exit.describe();
        let (exit_code, exited) = match exit {
            Exit::Code(code) => (code, true),
            Exit::Signal(_) => (-1, false),
        };
        let error = (exit != Exit::Code(0)).then(|| status.clone());
        End { error, exit_code, exited, status }
    }
}

impl End {
    pub fn exit(&self) -> Exit {
        Exit::described(self.exit_code, &self.status)
    }
}

/// Which stream a chunk of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
    Pty,
}

/// The envelope that begins a stream.
pub fn start_event(pid: u32) -> Bytes {
    envelope(ProcessEvent { start: Some(Started { pid }), ..ProcessEvent::default() })
}

/// An envelope with output.
pub fn data_event(stream: Stream, data: &[u8]) -> Bytes {
    let name = match stream {
        Stream::Stdout => "stdout",
        Stream::Stderr => "stderr",
        Stream::Pty => "pty",
    };
    // By hand, as it is done for every chunk: one copy less, and nothing in it needs escaping.
    let mut json = format!(r#"{{"event":{{"data":{{"{name}":""#);
    STANDARD.encode_string(data, &mut json);
    json.push_str(r#""}}}"#);
    message(json.as_bytes())
}

/// The envelope that says how the process ended.
pub fn end_event(exit: Exit) -> Bytes {
    envelope(ProcessEvent { end: Some(exit.into()), ..ProcessEvent::default() })
}

fn envelope(event: ProcessEvent) -> Bytes {
    // Fields with text keys, into memory: neither can fail.
    message(&serde_json::to_vec(&EventMessage { event }).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::connect::{Decoder, Frame};

    fn payload(envelope: &Bytes) -> Bytes {
        let mut decoder = Decoder::new(1 << 20);
        decoder.push(envelope);
        match decoder.next_frame() {
            Ok(Some(Frame::Message(payload))) => payload,
            other => panic!("{other:?}"),
        }
    }

    fn value(envelope: &Bytes) -> Value {
        serde_json::from_slice(&payload(envelope)).unwrap()
    }

    #[test]
    fn events_are_what_the_official_clients_read() {
        assert_eq!(value(&start_event(7)), json!({"event": {"start": {"pid": 7}}}));
        assert_eq!(value(&data_event(Stream::Stderr, b"hi")), json!({"event": {"data": {"stderr": "aGk="}}}));
        let end = |exit| value(&end_event(exit))["event"]["end"].clone();
        assert_eq!(end(Exit::Code(0)), json!({"exitCode": 0, "exited": true, "status": "exit status 0"}));
        assert_eq!(end(Exit::Code(3))["error"], "exit status 3");
        let killed =
            json!({"exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed"});
        assert_eq!(end(Exit::Signal(9)), killed);
    }

    #[test]
    fn keepalives_and_unknown_events_are_nothing() {
        for text in [KEEPALIVE, br#"{"event":{"future":{"a":1}}}"#] {
            let message: EventMessage = serde_json::from_slice(text).unwrap();
            assert_eq!(message.event, ProcessEvent::default());
        }
        assert!(serde_json::from_str::<EventMessage>("{}").is_err());
    }

    proptest! {
        #[test]
        fn events_survive(pid: u32, code: i32, signal in 1..=64, data in proptest::collection::vec(any::<u8>(), 0..50)) {
            let event = |envelope| serde_json::from_slice::<EventMessage>(&payload(&envelope)).unwrap().event;
            prop_assert_eq!(event(start_event(pid)).start, Some(Started { pid }));
            let data = Bytes::from(data);
            let read = event(data_event(Stream::Pty, &data)).data;
            prop_assert_eq!(read, Some(Data { pty: Some(Base64(data)), ..Data::default() }));
            for exit in [Exit::Code(code), Exit::Signal(signal)] {
                prop_assert_eq!(event(end_event(exit)).end.unwrap().exit(), exit);
            }
        }
    }
}
