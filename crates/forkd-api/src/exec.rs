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

/// Runs a program and waits until it ends.
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
    /// The user that runs it [default: the image's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The stdin of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(default = "thirty")]
    #[schema(minimum = 1, maximum = 86400, default = 30)]
    pub timeout_secs: u64,
}

/// The result of a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Executed {
    /// Invalid UTF-8 is replaced; the stream has the exact bytes.
    pub stdout: String,
    pub stderr: String,
    /// 128 plus the signal number if a signal ended it.
    pub exit_code: i32,
    /// Whether it was killed because it timed out.
    pub timed_out: bool,
    /// Whether output was cut because it did not fit into the response.
    pub truncated: bool,
}

/// A line of the streamed response (`Accept: application/x-ndjson`). Bytes are in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecEvent {
    Started {
        pid: u32,
    },
    Stdout(#[schema(inline)] Data),
    Stderr(#[schema(inline)] Data),
    /// Bytes of stdin that the program has read, or will never read, since the last such event. Only over a WebSocket, and only
    /// with `stdin_window`.
    StdinTaken {
        bytes: u64,
    },
    /// The last line: the program has ended.
    Exited {
        exit_code: i32,
        timed_out: bool,
    },
    /// The last line: the stream failed before the end.
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

/// Starts an interactive program: the client's first message, as text.
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
    /// The user that runs it [default: the image's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Stdin that precedes the binary messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Seconds until it is killed [default: 30; with a terminal, 86400].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_secs: Option<u64>,
    /// Gives the program a terminal of this size. `TERM` is `xterm-256color` unless `env` sets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tty: Option<TerminalSize>,
    /// Whether to send `stdin_taken` events. While a client has sent at most 1 MiB more in binary messages than these report, the
    /// daemon keeps reading its messages even if the program does not read: signals, resizes and a disconnect take effect at once.
    /// Without these events, the daemon stops reading from a client that has sent more than 1 MiB until the program reads.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin_window: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    pub cols: u16,
    pub rows: u16,
}

/// A text message of a client after the first one. Stdin is sent in binary messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecInput {
    /// The terminal's new size.
    Resize(TerminalSize),
    /// Sends a signal to the program and its process group.
    Signal(Signal),
    /// Closes stdin; with a terminal, sends Ctrl-D.
    CloseStdin,
}

/// Starts a program in the background.
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
    /// The user that runs it [default: the image's].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Whether its stdin is open for writing. Otherwise it is at its end from the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stdin: bool,
    /// Seconds until it is killed [default: unlimited].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 86400)]
    pub timeout_secs: Option<u64>,
}

/// A program that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartedProcess {
    pub pid: u32,
}

/// A running program that a client has started; its child processes are not listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Process {
    pub pid: u32,
    /// The program and its arguments.
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// A tag set by an E2B client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether it has a terminal.
    pub tty: bool,
}

/// Sends a signal to a program and its process group.
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
    /// Whether to close stdin after the bytes; with a terminal, sends Ctrl-D.
    #[serde(default)]
    pub close: bool,
}

/// The most bytes that a program is sent at once.
pub const MAX_STDIN: usize = 1 << 20;

/// A signal.
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
