//! The lines of an `/execute` answer: one JSON object each, in ASCII.
//!
//! The JavaScript SDK decodes every chunk by itself and would garble a character that is split between two, so everything
//! above ASCII is escaped.

use std::io;
use std::time::SystemTime;

use bytes::Bytes;
use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};
use serde_json::{Map, Value, json};

/// Parts of a result that the protocol knows. Others are not passed on: a driver is in the hands of the code that it runs.
const RESULT_FIELDS: [&str; 13] = [
    "text",
    "html",
    "markdown",
    "svg",
    "png",
    "jpeg",
    "pdf",
    "latex",
    "json",
    "javascript",
    "data",
    "chart",
    "extra",
];

/// Which of the two streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

pub fn number_of_executions(count: u64) -> Bytes {
    encode(&json!({ "type": "number_of_executions", "execution_count": count }))
}

pub fn output(stream: Stream, text: &str) -> Bytes {
    let kind = match stream {
        Stream::Output => "stdout",
        Stream::Error => "stderr",
    };
    let time = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    encode(&json!({ "type": kind, "text": text, "timestamp": time }))
}

pub fn result(mut fields: Map<String, Value>, main: bool) -> Bytes {
    let mut line = Map::new();
    line.insert("type".into(), "result".into());
    for name in RESULT_FIELDS {
        match fields.remove(name) {
            Some(Value::String(text)) if name == "text" => {
                line.insert(name.into(), without_quotes(&text).into());
            }
            Some(Value::Null) | None => {}
            Some(value) => {
                line.insert(name.into(), value);
            }
        }
    }
    line.insert("is_main_result".into(), main.into());
    encode(&line)
}

pub fn error(name: &str, value: &str, traceback: &str) -> Bytes {
    encode(&json!({ "type": "error", "name": name, "value": value, "traceback": traceback }))
}

pub fn keepalive() -> Bytes {
    Bytes::from_static(b"{\"type\":\"keepalive\"}\n")
}

pub fn end_of_execution() -> Bytes {
    Bytes::from_static(b"{\"type\":\"end_of_execution\"}\n")
}

/// E2B's server takes the quotes off the text of a string, so that its value is what the user sees.
fn without_quotes(text: &str) -> &str {
    ['\'', '"']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote).and_then(|rest| rest.strip_suffix(*quote)))
        .unwrap_or(text)
}

fn encode(value: &impl Serialize) -> Bytes {
    let mut line = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut line, Ascii(CompactFormatter));
    // Maps with text keys, into memory: neither can fail.
    let _ = value.serialize(&mut serializer);
    line.push(b'\n');
    line.into()
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

    use super::*;

    proptest! {
        #[test]
        fn a_line_is_ascii_and_says_the_same(text in any::<String>()) {
            let line = error("Name", &text, "");
            prop_assert!(line.is_ascii());
            prop_assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            let back: Value = serde_json::from_slice(&line).unwrap();
            prop_assert_eq!(back["value"].as_str(), Some(text.as_str()));
        }
    }

    #[test]
    fn quotes_around_a_text_go_and_others_stay() {
        for (before, after) in
            [("'abc'", "abc"), ("\"it's\"", "it's"), ("[1]", "[1]"), ("'", "'"), ("'a\"", "'a\"")]
        {
            assert_eq!(without_quotes(before), after);
        }
    }

    #[test]
    fn results_have_known_parts_only() {
        let fields = json!({ "text": "'x'", "png": "aGk=", "html": null, "type": "error", "evil": 1 });
        let Value::Object(fields) = fields else { unreachable!("it is an object") };
        let line: Value = serde_json::from_slice(&result(fields, true)).unwrap();
        assert_eq!(line, json!({ "type": "result", "text": "x", "png": "aGk=", "is_main_result": true }));
    }
}
