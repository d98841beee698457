//! Errors as Connect names them, and the HTTP status of each.

use serde::{Deserialize, Serialize};

/// The codes that a client can tell apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    ResourceExhausted,
    Unimplemented,
    Internal,
    Unavailable,
    DeadlineExceeded,
    DataLoss,
    /// Also every code that is not listed here.
    #[default]
    #[serde(other)]
    Unknown,
}

impl Code {
    pub fn status(self) -> u16 {
        match self {
            Code::InvalidArgument | Code::FailedPrecondition => 400,
            Code::Unauthenticated => 401,
            Code::PermissionDenied => 403,
            Code::NotFound => 404,
            Code::AlreadyExists => 409,
            Code::ResourceExhausted => 429,
            Code::Unimplemented => 501,
            Code::Internal | Code::DataLoss | Code::Unknown => 500,
            Code::Unavailable => 503,
            Code::DeadlineExceeded => 504,
        }
    }
}

/// What a call answers when it fails. The message is for the person who made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    #[serde(default)]
    pub code: Code,
    #[serde(default)]
    pub message: String,
}

impl ConnectError {
    pub fn new(code: Code, message: impl Into<String>) -> ConnectError {
        ConnectError { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> ConnectError {
        ConnectError::new(Code::InvalidArgument, message)
    }

    pub fn not_found(message: impl Into<String>) -> ConnectError {
        ConnectError::new(Code::NotFound, message)
    }
}

/// The message in the body of an answer that refuses, whether Connect's or plain HTTP's; the body itself if it has none.
/// An agent is not trusted: what is returned has at most 500 characters.
pub fn refusal(body: &[u8]) -> String {
    const LONGEST: usize = 500;
    #[derive(Deserialize)]
    struct Refused {
        message: String,
    }
    let text = match serde_json::from_slice::<Refused>(body) {
        Ok(refused) if !refused.message.is_empty() => refused.message,
        _ => String::from_utf8_lossy(body).into_owned(),
    };
    text.trim().chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_what_clients_match() {
        let error = ConnectError::not_found("no such thing");
        assert_eq!(error.code.status(), 404);
        assert_eq!(
            serde_json::to_string(&error).unwrap(),
            r#"{"code":"not_found","message":"no such thing"}"#
        );
        assert_eq!(serde_json::to_string(&Code::DeadlineExceeded).unwrap(), "\"deadline_exceeded\"");
        assert_eq!(serde_json::from_str::<Code>("\"deadline_exceeded\"").unwrap(), Code::DeadlineExceeded);
        assert_eq!(serde_json::from_str::<Code>("\"aborted\"").unwrap(), Code::Unknown);
    }

    #[test]
    fn refusals_have_a_message_or_are_one() {
        assert_eq!(refusal(br#"{"code":"invalid_argument","message":"no such cwd"}"#), "no such cwd");
        assert_eq!(refusal(br#"{"code":400,"message":" no such user\n"}"#), "no such user");
        for odd in ["no!", "[1]", r#"{"message":1}"#, r#"{"code":400}"#, "{", ""] {
            assert_eq!(refusal(format!("{odd}\n").as_bytes()), odd);
        }
        assert_eq!(refusal(&[b'x'; 1000]).len(), 500);
    }
}
