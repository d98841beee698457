//! Connect's errors as answers, and the system's errors as Connect's.

use std::io;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::Response;
use forkd_envd::connect::{Code, ConnectError, UNARY_TYPE};
use rustix::io::Errno;

/// The answer to a call that failed.
pub fn error_response(error: &ConnectError) -> Response {
    let mut response = Response::new(Body::from(serde_json::to_vec(error).unwrap_or_default()));
    *response.status_mut() =
        StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(UNARY_TYPE));
    response
}

/// An error of the guest's system, about `subject`.
pub fn system_error(subject: &str, error: &io::Error) -> ConnectError {
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
    ConnectError::new(code, format!("{subject}: {}", words(error)))
}

/// An error of the guest's system in the C library's words, which E2B's agent begins with a small letter: `no such file or directory`.
pub fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let Some(errno) = error.raw_os_error() else { return text };
    let text = text.strip_suffix(&format!(" (os error {errno})")).unwrap_or(&text);
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_lowercase());
    first.into_iter().chain(characters).collect()
}

/// The same, with what it was that is missing: clients of E2B look for these words.
pub fn or_missing(what: &str, error: ConnectError) -> ConnectError {
    match error.code {
        Code::NotFound => ConnectError::not_found(format!("{what}: {}", error.message)),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_errors_have_codes() {
        let code = |errno: Errno| system_error("x", &errno.into()).code;
        assert_eq!(code(Errno::NOENT), Code::NotFound);
        assert_eq!(code(Errno::NOSPC), Code::ResourceExhausted);
        assert_eq!(code(Errno::IO), Code::Internal);
    }

    #[test]
    fn codes_are_statuses() {
        assert_eq!(error_response(&ConnectError::not_found("no such thing")).status(), 404);
        assert_eq!(error_response(&system_error("x", &Errno::IO.into())).status(), 500);
    }
}
