//! The lines of an `/execute` answer that need more than their parts.

use std::time::SystemTime;

use bytes::Bytes;
use forkd_envd::interpreter::{CodeError, Line, Printed};
use serde_json::{Map, Value};

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

/// What was printed now.
pub fn output(stream: Stream, text: impl Into<String>) -> Bytes {
    let timestamp = humantime::format_rfc3339_micros(SystemTime::now()).to_string();
    let printed = Printed { text: text.into(), timestamp: timestamp.into() };
    match stream {
        Stream::Output => Line::Stdout(printed),
        Stream::Error => Line::Stderr(printed),
    }
    .encode()
}

pub fn result(mut fields: Map<String, Value>, main: bool) -> Bytes {
    let mut kinds = Map::new();
    for name in RESULT_FIELDS {
        match fields.remove(name) {
            Some(Value::String(text)) if name == "text" => {
                kinds.insert(name.into(), without_quotes(&text).into());
            }
            Some(Value::Null) | None => {}
            Some(value) => {
                kinds.insert(name.into(), value);
            }
        }
    }
    Line::Result { is_main_result: main, kinds }.encode()
}

pub fn error(name: impl Into<String>, value: impl Into<String>, traceback: impl Into<String>) -> Bytes {
    Line::Error(CodeError { name: name.into(), value: value.into(), traceback: traceback.into() }).encode()
}

/// E2B's server takes the quotes off the text of a string, so that its value is what the user sees.
fn without_quotes(text: &str) -> &str {
    ['\'', '"']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote).and_then(|rest| rest.strip_suffix(*quote)))
        .unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
