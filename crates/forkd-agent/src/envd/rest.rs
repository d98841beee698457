//! Errors of the calls that are not RPCs: `{"code": 404, "message": "…"}` with the same status.

use std::io;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rustix::io::Errno;
use serde_json::json;

use super::caller::NoUser;
use crate::connect::words;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RestError {
    status: StatusCode,
    message: String,
}

impl RestError {
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message: message.into() }
    }

    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self { status: StatusCode::UNAUTHORIZED, message: message.into() }
    }

    pub fn not_found(message: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, message: message.into() }
    }

    /// An error of the guest's system, about `subject`.
    pub fn system(subject: &str, error: &io::Error) -> Self {
        let status = match Errno::from_io_error(error) {
            Some(Errno::NOENT) => StatusCode::NOT_FOUND,
            Some(Errno::NOSPC | Errno::DQUOT) => StatusCode::INSUFFICIENT_STORAGE,
            Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => StatusCode::FORBIDDEN,
            Some(
                Errno::ISDIR | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP | Errno::INVAL | Errno::NXIO,
            ) => StatusCode::BAD_REQUEST,
            // What was found out without asking the system.
            None if matches!(
                error.kind(),
                io::ErrorKind::IsADirectory
                    | io::ErrorKind::NotADirectory
                    | io::ErrorKind::InvalidData
                    | io::ErrorKind::UnexpectedEof
            ) =>
            {
                StatusCode::BAD_REQUEST
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let message = match status {
            StatusCode::INSUFFICIENT_STORAGE => format!("{subject}: not enough disk space available"),
            _ => format!("{subject}: {}", words(error)),
        };
        Self { status, message }
    }

    #[cfg(test)]
    pub fn status(&self) -> u16 {
        self.status.as_u16()
    }
}

impl From<NoUser> for RestError {
    fn from(unknown: NoUser) -> RestError {
        RestError::unauthorized(unknown.to_string())
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "code": self.status.as_u16(), "message": self.message }))).into_response()
    }
}
