//! What goes wrong between a caller and the daemon.

use std::fmt;
use std::io;
use std::time::Duration;

use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::hint::HintCode;
use serde::Deserialize;

/// A request has failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot reach the daemon at {address}")]
    Unreachable { address: String, source: io::Error },
    #[error("this host does not trust the certificate of the daemon at {address}")]
    Untrusted { address: String, source: io::Error },
    #[error(transparent)]
    Refused(Box<Refusal>),
    #[error("the connection to the daemon broke")]
    Broken(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the daemon did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    #[error("the server at {address} is not forkd's daemon: {what}")]
    Foreign { address: String, what: String },
    #[error("the daemon's answer is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the daemon closed the connection before the end of the answer")]
    CutOff,
    #[error("cannot read the data to send")]
    Upload(#[source] io::Error),
}

/// What the daemon refused, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// Nothing if it is one that this client does not know.
    pub code: Option<ErrorCode>,
    pub error: String,
    /// What to do about it, in words of the API.
    pub hint: Option<String>,
    /// Nothing if there is no hint, or one that this client does not know.
    pub hint_code: Option<HintCode>,
}

impl ClientError {
    /// The daemon's word for what is wrong, if it was the daemon that refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::Refused(refusal) => refusal.code,
            _ => None,
        }
    }

    /// Whether the daemon knows nothing of what was asked for.
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(ErrorCode::NotFound)
    }

    pub(crate) fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ClientError {
        ClientError::Broken(error.into())
    }
}

impl From<ErrorBody> for ClientError {
    /// An error that is part of an answer.
    fn from(body: ErrorBody) -> ClientError {
        let ErrorBody { error, code, hint, hint_code } = body;
        let refusal = Refusal { status: code.status(), code: Some(code), error, hint, hint_code };
        ClientError::Refused(Box::new(refusal))
    }
}

impl Refusal {
    /// From the body of an answer; nothing if it is not one of the daemon's.
    pub(crate) fn parse(status: u16, body: &[u8]) -> Option<Refusal> {
        // As ErrorBody, except that a newer daemon may have codes that this client has not.
        #[derive(Deserialize)]
        struct Body {
            error: String,
            code: serde_json::Value,
            hint: Option<String>,
            #[serde(default)]
            hint_code: serde_json::Value,
        }
        let Body { error, code, hint, hint_code } = serde_json::from_slice(body).ok()?;
        let (code, hint_code) = (serde_json::from_value(code).ok(), serde_json::from_value(hint_code).ok());
        Some(Refusal { status, code, error, hint, hint_code })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.error)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_read_also_with_codes_of_the_future() {
        let body = br#"{"error": "no", "code": "not_found", "hint": "look"}"#;
        let refusal = Refusal::parse(404, body).unwrap();
        assert_eq!((refusal.code, refusal.to_string().as_str()), (Some(ErrorCode::NotFound), "no"));
        let newer = Refusal::parse(418, br#"{"error": "no", "code": "teapot", "more": 1}"#).unwrap();
        assert_eq!((newer.status, newer.code, newer.hint), (418, None, None));
        for foreign in ["", "<html>", "{}", r#"{"error": 1, "code": "x"}"#, r#"{"error": "x"}"#] {
            assert_eq!(Refusal::parse(500, foreign.as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn hints_have_codes_unless_they_are_of_the_future() {
        let body = br#"{"error": "no", "code": "not_found", "hint": "look", "hint_code": "list_images"}"#;
        assert_eq!(Refusal::parse(404, body).unwrap().hint_code, Some(HintCode::ListImages));
        let newer = br#"{"error": "no", "code": "not_found", "hint": "look", "hint_code": "tea"}"#;
        let newer = Refusal::parse(404, newer).unwrap();
        assert_eq!((newer.hint.as_deref(), newer.hint_code), (Some("look"), None));
        assert_eq!(Refusal::parse(404, br#"{"error": "no", "code": "x"}"#).unwrap().hint_code, None);
    }
}
