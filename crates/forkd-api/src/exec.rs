//! Commands in a sandbox.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::code::thirty;
use crate::data::Data;

/// What the first byte of a binary message of an interactive program says: where the rest comes from. A terminal has only the
/// first.
const STDOUT: u8 = 1;
const STDERR: u8 = 2;

/// The largest message that is taken from the client of an interactive program.
pub const MAX_INPUT_MESSAGE: usize = 256 << 10;

/// How much stdin may be on its way to an interactive program that does not read. The daemon reads messages of a client that
/// keeps to it at any time, so that its signals arrive.
pub const STDIN_WINDOW: usize = 1 << 20;

/// Runs a program and waits for its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program and its arguments.
    #[schema(min_items = 1)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Without one, the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What the program reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(default = "thirty")]
    #[schema(minimum = 1, maximum = 86400, default = 30)]
    pub timeout_secs: u64,
}

/// How a program has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Executed {
    /// What is not UTF-8 is replaced; the stream has it exactly.
    pub stdout: String,
    pub stderr: String,
    /// 128 and the signal's number if a signal has ended it.
    pub exit_code: i32,
    /// Whether it was ended because its time was over.
    pub timed_out: bool,
    /// Whether there was more output than an answer holds.
    pub truncated: bool,
}

/// A line of the stream that is the answer when `application/x-ndjson` is accepted. Bytes are in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecEvent {
    Started {
        pid: u32,
    },
    Stdout(#[schema(inline)] Data),
    Stderr(#[schema(inline)] Data),
    /// The program has taken this much of what came in binary messages, or will never read it. Only over a WebSocket, and only
    /// for a client that asked with `stdin_window`.
    StdinTaken {
        bytes: u64,
    },
    /// The last line: it has ended.
    Exited {
        exit_code: i32,
        timed_out: bool,
    },
    /// The last line: it could not be followed to its end.
    Error(crate::error::ErrorBody),
}

impl ExecEvent {
    /// Whether nothing follows it.
    pub fn is_last(&self) -> bool {
        matches!(self, ExecEvent::Exited { .. } | ExecEvent::Error(_))
    }

    /// Output as a binary message of an interactive program; nothing for events that are text.
    pub fn to_binary(&self) -> Option<Bytes> {
        let (stream, bytes) = match self {
            ExecEvent::Stdout(Data(bytes)) => (STDOUT, bytes),
            ExecEvent::Stderr(Data(bytes)) => (STDERR, bytes),
            _ => return None,
        };
        let mut message = BytesMut::with_capacity(bytes.len() + 1);
        message.put_u8(stream);
        message.put_slice(bytes);
        Some(message.freeze())
    }

    /// The output in a binary message of an interactive program.
    pub fn from_binary(mut message: Bytes) -> Option<ExecEvent> {
        match message.try_get_u8().ok()? {
            STDOUT => Some(ExecEvent::Stdout(Data(message))),
            STDERR => Some(ExecEvent::Stderr(Data(message))),
            _ => None,
        }
    }
}

/// Begins an interactive program: the first message of a client, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecStart {
    /// The program and its arguments.
    #[schema(min_items = 1)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Without one, the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What the program reads first, before what comes in binary messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Without it, 30 seconds; with a terminal, a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_secs: Option<u64>,
    /// With it, the program has a terminal of this size; `TERM` is `xterm-256color` if `env` does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TerminalSize>,
    /// Whether the client wants `stdin_taken` events. One that sends at most 1 MiB in binary messages more than these report
    /// is listened to while its program reads nothing: signals, sizes and its going away arrive at once. Without them, a client
    /// that has sent more than that is not listened to until the program reads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_window: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    pub cols: u16,
    pub rows: u16,
}

/// A text message of a client after the first one. What the program reads comes in binary messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecInput {
    /// The terminal's new size.
    Resize(TerminalSize),
    /// To the program, and all that are in its process group.
    Signal(Signal),
    /// The program reads the end of its input; at a terminal, Ctrl-D.
    CloseStdin,
}

/// Starts a program that nobody waits for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartProcess {
    /// The program and its arguments.
    #[schema(min_items = 1)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Without one, the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether it can be written to. Without it, the program reads the end of its input at once.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
    /// It is killed after this time. Without it, it runs as long as it wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_secs: Option<u64>,
}

/// A program that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartedProcess {
    pub pid: u32,
}

/// A program that runs: one that a client has started, not one of its children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    pub pid: u32,
    /// The program and its arguments.
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// A name that an E2B client has given it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// Sends a signal to a program and all that are in its process group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendSignal {
    pub signal: Signal,
}

/// What comes with bytes for a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StdinQuery {
    /// Whether the program reads the end of its input after them; at a terminal, Ctrl-D.
    #[serde(default)]
    pub close: bool,
}

/// The most bytes that a program is sent at once.
pub const MAX_STDIN: usize = 1 << 20;

/// A signal that programs are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum Signal {
    #[serde(rename = "SIGHUP")]
    Hup,
    #[serde(rename = "SIGINT")]
    Int,
    #[serde(rename = "SIGQUIT")]
    Quit,
    #[serde(rename = "SIGKILL")]
    Kill,
    #[serde(rename = "SIGUSR1")]
    Usr1,
    #[serde(rename = "SIGUSR2")]
    Usr2,
    #[serde(rename = "SIGTERM")]
    Term,
    #[serde(rename = "SIGCONT")]
    Cont,
    #[serde(rename = "SIGSTOP")]
    Stop,
    #[serde(rename = "SIGTSTP")]
    Tstp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_base64_in_text_and_plain_in_binary_messages() {
        let output = ExecEvent::Stdout(Data::from(&b"\xff\0"[..]));
        assert_eq!(serde_json::to_string(&output).unwrap(), r#"{"stdout":"/wA="}"#);
        assert_eq!(serde_json::from_str::<ExecEvent>(r#"{"stdout":"/wA="}"#).unwrap(), output);
        assert!(serde_json::from_str::<ExecEvent>(r#"{"stdout":"?"}"#).is_err());
        assert_eq!(output.to_binary().unwrap(), &b"\x01\xff\0"[..]);
        let nothing = ExecEvent::Stderr(Data::default());
        assert_eq!(nothing.to_binary().unwrap(), &b"\x02"[..]);
        for event in [output, nothing] {
            assert_eq!(ExecEvent::from_binary(event.to_binary().unwrap()), Some(event));
        }
        assert_eq!(ExecEvent::Started { pid: 7 }.to_binary(), None);
        assert_eq!(ExecEvent::from_binary(Bytes::new()), None);
        assert_eq!(ExecEvent::from_binary(Bytes::from_static(b"\x03a")), None);
    }

    #[test]
    fn messages_are_written_as_the_document_says() {
        let resize = ExecInput::Resize(TerminalSize { cols: 80, rows: 24 });
        for (message, text) in [
            (resize, r#"{"resize":{"cols":80,"rows":24}}"#),
            (ExecInput::Signal(Signal::Int), r#"{"signal":"SIGINT"}"#),
            (ExecInput::CloseStdin, r#""close_stdin""#),
        ] {
            assert_eq!(serde_json::to_string(&message).unwrap(), text);
            assert_eq!(serde_json::from_str::<ExecInput>(text).unwrap(), message);
        }
        for wrong in [r#"{"signal":"SIGSEGV"}"#, r#"{"resize":{"cols":-1,"rows":1}}"#, "1", "\"stdin\""] {
            assert!(serde_json::from_str::<ExecInput>(wrong).is_err(), "{wrong}");
        }
        let start: ExecStart = serde_json::from_str(r#"{"args":["sh"],"tty":{"cols":1,"rows":2}}"#).unwrap();
        assert_eq!(start.tty, Some(TerminalSize { cols: 1, rows: 2 }));
    }
}
