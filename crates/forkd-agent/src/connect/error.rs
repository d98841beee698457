//! Errors as Connect names them, and the HTTP status of each.

use std::io;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rustix::io::Errno;
use serde::Serialize;

/// The codes that a client can tell apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
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
    DeadlineExceeded,
    DataLoss,
}

impl Code {
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal | Self::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

/// What a call answers when it fails. The message is for the person who made it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{message}")]
pub struct ConnectError {
    pub code: Code,
    pub message: String,
}

impl ConnectError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// An error of the guest's system, about `subject`.
    pub fn system(subject: &str, error: &io::Error) -> Self {
        let code = match Errno::from_io_error(error) {
            Some(Errno::NOENT | Errno::SRCH) => Code::NotFound,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Code::PermissionDenied,
            Some(Errno::EXIST | Errno::NOTEMPTY) => Code::AlreadyExists,
            Some(
                Errno::INVAL
                | Errno::NAMETOOLONG
                | Errno::LOOP
                | Errno::ISDIR
                // What is below a file is not missing: as E2B's agent, clients tell one from the other.
                | Errno::NOTDIR
                | Errno::XDEV,
            ) => Code::InvalidArgument,
            Some(Errno::NOSPC | Errno::DQUOT | Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
                Code::ResourceExhausted
            }
            _ => Code::Internal,
        };
        Self::new(code, format!("{subject}: {error}"))
    }

    /// The payload of an end-of-stream envelope.
    pub(super) fn end(result: &Result<(), Self>) -> Vec<u8> {
        #[derive(Serialize)]
        struct End<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<&'a ConnectError>,
        }
        serde_json::to_vec(&End { error: result.as_ref().err() }).unwrap_or_else(|_| b"{}".to_vec())
    }
}

impl IntoResponse for ConnectError {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = self.code.status();
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_what_clients_match() {
        let error = ConnectError::not_found("no such thing");
        let payload = ConnectError::end(&Err(error.clone()));
        let text = r#"{"error":{"code":"not_found","message":"no such thing"}}"#;
        assert_eq!(String::from_utf8(payload).unwrap(), text);
        assert_eq!(ConnectError::end(&Ok(())), b"{}");
        assert_eq!(error.into_response().status(), 404);
        assert_eq!(serde_json::to_string(&Code::DeadlineExceeded).unwrap(), "\"deadline_exceeded\"");
    }

    #[test]
    fn the_systems_errors_have_codes() {
        let code = |errno: Errno| ConnectError::system("x", &errno.into()).code;
        assert_eq!(code(Errno::NOENT), Code::NotFound);
        assert_eq!(code(Errno::NOSPC), Code::ResourceExhausted);
        assert_eq!(code(Errno::IO), Code::Internal);
    }
}
