//! E2B's code interpreter: `POST /execute` is answered with lines, one JSON object each.
//!
//! The JavaScript SDK decodes every chunk separately and would garble a character that is split between two, so lines are ASCII:
//! everything above is escaped.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};
use serde_json::{Map, Value};

pub const EXECUTE: &str = "/execute";
pub const CONTEXTS: &str = "/contexts";

/// Whether a path is `/contexts` or below it.
pub fn is_contexts(path: &str) -> bool {
    path.strip_prefix(CONTEXTS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[derive(Debug, Serialize, Deserialize)]
pub struct ExecuteRequest {
    pub code: String,
    /// Not together with a language.
    pub context_id: Option<String>,
    pub language: Option<String>,
    pub env_vars: Option<BTreeMap<String, String>>,
}

/// Makes a context: `POST /contexts`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct CreateContextRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub language: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// A context, as its maker and a list of them get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextInfo {
    pub id: String,
    pub language: String,
    pub cwd: String,
    /// Whether code runs in it. E2B's does not tell, nor do early agents.
    #[serde(default)]
    pub busy: bool,
}

/// Interrupts the code that runs in a context: `POST /contexts/{id}/interrupt`. E2B has no such call.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InterruptRequest {
    /// What the code gets to end. After that it is ended with its interpreter.
    pub grace_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterruptResponse {
    /// Whether the code did not end in time, and a new interpreter is there.
    pub restarted: bool,
}

/// A line of the answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    NumberOfExecutions {
        execution_count: u64,
    },
    Stdout(Printed),
    Stderr(Printed),
    /// A value that was displayed, by its kinds (`text`, `html`, `png`, …).
    Result {
        /// Whether it is the value of the last expression.
        #[serde(default)]
        is_main_result: bool,
        #[serde(flatten)]
        kinds: Map<String, Value>,
    },
    Error(CodeError),
    Keepalive,
    /// The last one.
    EndOfExecution,
    /// What later agents say.
    #[serde(other)]
    Unknown,
}

/// Output, as text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Printed {
    pub text: String,
    /// RFC 3339 from this agent; others may have numbers.
    pub timestamp: Value,
}

/// The code has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CodeError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

impl Line {
    /// With its end.
    pub fn encode(&self) -> Bytes {
        let mut line = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut line, Ascii(CompactFormatter));
        // Maps with text keys, into memory: neither can fail.
        let _ = self.serialize(&mut serializer);
        line.push(b'\n');
        line.into()
    }
}

struct Ascii(CompactFormatter);

impl Formatter for Ascii {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain = 0;
        for (at, character) in fragment.char_indices().filter(|(_, character)| !character.is_ascii()) {
            writer.write_all(fragment.get(plain..at).unwrap_or_default().as_bytes())?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain = at + character.len_utf8();
        }
        writer.write_all(fragment.get(plain..).unwrap_or_default().as_bytes())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(writer, escape)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn a_line_is_ascii_and_says_the_same(text in any::<String>()) {
            let error = CodeError { name: "Name".into(), value: text.clone(), traceback: String::new() };
            let kinds = Map::from_iter([(text.clone(), text.clone().into())]);
            for line in [
                Line::Error(error),
                Line::Stdout(Printed { text, timestamp: "x".into() }),
                Line::Result { is_main_result: true, kinds: Map::from_iter([("data".into(), kinds.into())]) },
            ] {
                let encoded = line.encode();
                prop_assert!(encoded.is_ascii());
                prop_assert_eq!(encoded.iter().filter(|byte| **byte == b'\n').count(), 1);
                prop_assert_eq!(serde_json::from_slice::<Line>(&encoded).unwrap(), line);
            }
        }
    }

    #[test]
    fn lines_are_what_the_official_clients_read() {
        let printed = Printed { text: "hi".into(), timestamp: "now".into() };
        let error = CodeError { name: "E".into(), value: "v".into(), traceback: "t".into() };
        let kinds = Map::from_iter([("text".into(), "2".into()), ("json".into(), json!({"a": 1}))]);
        for (line, expected) in [
            (
                Line::NumberOfExecutions { execution_count: 1 },
                json!({"type": "number_of_executions", "execution_count": 1}),
            ),
            (Line::Stdout(printed.clone()), json!({"type": "stdout", "text": "hi", "timestamp": "now"})),
            (Line::Stderr(printed), json!({"type": "stderr", "text": "hi", "timestamp": "now"})),
            (
                Line::Result { is_main_result: true, kinds },
                json!({"type": "result", "text": "2", "json": {"a": 1}, "is_main_result": true}),
            ),
            (Line::Error(error), json!({"type": "error", "name": "E", "value": "v", "traceback": "t"})),
            (Line::Keepalive, json!({"type": "keepalive"})),
            (Line::EndOfExecution, json!({"type": "end_of_execution"})),
        ] {
            assert_eq!(serde_json::from_slice::<Value>(&line.encode()).unwrap(), expected);
            assert_eq!(serde_json::from_value::<Line>(expected).unwrap(), line);
        }
    }

    #[test]
    fn what_is_unknown_is_passed_over() {
        let read = |text: &str| serde_json::from_str::<Line>(text);
        assert_eq!(read(r#"{"type":"future","text":1}"#).unwrap(), Line::Unknown);
        assert_eq!(read(r#"{"type":"keepalive","more":1}"#).unwrap(), Line::Keepalive);
        let printed = Printed { text: "hi".into(), timestamp: 0.into() };
        assert_eq!(read(r#"{"type":"stdout","text":"hi","timestamp":0}"#).unwrap(), Line::Stdout(printed));
        for wrong in ["", "[]", "{}", r#"{"type":"error"}"#] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn contexts_are_paths() {
        assert!(is_contexts("/contexts") && is_contexts("/contexts/x/restart"));
        assert!(!is_contexts("/contextsx") && !is_contexts("/execute"));
    }
}
