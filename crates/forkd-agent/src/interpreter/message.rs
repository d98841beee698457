//! What the agent and a driver say to each other.
//!
//! Python and Node speak JSON lines; a shell reads commands and answers with words. R and Java have nothing that reads JSON: they
//! are told words and answer with JSON. Whatever a driver says is as trustworthy as the code that it runs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::bash::{self, BashError};
use super::language::Language;
use super::words;
use crate::json_line::json_line;

/// What a driver tells.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It has started.
    Ready,
    Result {
        /// Whether it is the value of the last expression.
        main: bool,
        fields: Map<String, Value>,
    },
    Error {
        name: String,
        value: String,
        traceback: String,
    },
    /// Something went wrong after a fork; the driver keeps running.
    Problem {
        message: String,
    },
    /// The request is answered.
    Done {
        id: u64,
        /// A shell's exit status.
        #[serde(default)]
        status: i32,
        /// Whether nothing of the driver runs until the next request: no other thread, no timer, no code that waits for a
        /// fork.
        #[serde(default)]
        rests: bool,
    },
}

/// Which fork this is, as code in the sandbox sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForkIdentity {
    pub id: String,
    pub index: u64,
    pub generation: u64,
}

#[derive(Debug, thiserror::Error)]
#[error("invalid event from the driver")]
pub struct Garbled;

pub fn run(
    language: Language,
    id: u64,
    code: &str,
    environment: &BTreeMap<String, String>,
) -> Result<Vec<u8>, BashError> {
    match language {
        Language::Bash => bash::run(id, code, environment).map(String::into_bytes),
        Language::R | Language::Java => Ok(words::run(id, code, environment).into_bytes()),
        _ => Ok(json_line(&json!({ "op": "run", "id": id, "code": code, "env": environment }))),
    }
}

pub fn fork(
    language: Language,
    id: u64,
    identity: &ForkIdentity,
    environment: &BTreeMap<String, String>,
) -> Vec<u8> {
    match language {
        Language::Bash => bash::fork(id, random(), environment).into_bytes(),
        Language::R | Language::Java => words::fork(id, identity, environment).into_bytes(),
        _ => json_line(&json!({ "op": "fork", "id": id, "env": environment, "identity": identity })),
    }
}

fn random() -> u32 {
    // It can only fail on kernels without the call, where there is no better source either.
    getrandom::u32().unwrap_or(0)
}

pub fn parse(language: Language, line: &[u8]) -> Result<Event, Garbled> {
    match language {
        Language::Bash => bash_event(line).ok_or(Garbled),
        _ => serde_json::from_slice(line).map_err(|_| Garbled),
    }
}

fn bash_event(line: &[u8]) -> Option<Event> {
    let mut words = std::str::from_utf8(line).ok()?.split(' ');
    match (words.next()?, words.next(), words.next(), words.next()) {
        ("ready", None, None, None) => Some(Event::Ready),
        ("done", Some(id), Some(status), None) => {
            // What a shell has in the background has generators of its own, which could not be reached.
            Some(Event::Done { id: id.parse().ok()?, status: status.parse().ok()?, rests: true })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_say_json_and_shells_words() {
        let done = |rests| Event::Done { id: 3, status: 0, rests };
        assert_eq!(parse(Language::Python, br#"{"event":"done","id":3}"#).unwrap(), done(false));
        assert_eq!(parse(Language::Python, br#"{"event":"done","id":3,"rests":true}"#).unwrap(), done(true));
        assert_eq!(parse(Language::R, br#"{"event":"done","id":3,"rests":true}"#).unwrap(), done(true));
        assert_eq!(parse(Language::Bash, b"done 3 0").unwrap(), done(true));
        assert_eq!(parse(Language::Bash, b"ready").unwrap(), Event::Ready);
    }

    #[test]
    fn nonsense_is_no_event() {
        for line in [
            &b""[..],
            b"done",
            b"done x 0",
            b"done 1 2 3 4",
            b"\xff",
            b"{}",
            b"[]",
            b"{\"event\":\"result\"}",
        ] {
            assert!(parse(Language::Bash, line).is_err(), "{line:?}");
            assert!(parse(Language::Python, line).is_err(), "{line:?}");
        }
    }
}
