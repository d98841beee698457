//! What can go wrong between here and a registry, and whether it is worth another try.

use std::io;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error(
        "{text:?} is not a valid reference: {reason}; expected registry/repository:tag or registry/repository@sha256:..."
    )]
    Reference { text: String, reason: String },
    #[error("cannot start the network runtime")]
    Runtime(#[source] io::Error),
    #[error("cannot set up the HTTP client")]
    Client(#[source] reqwest::Error),
    #[error("{request} failed")]
    Connection { request: String, source: reqwest::Error },
    #[error("{request}: the registry sent nothing for {seconds} s")]
    Stalled { request: String, seconds: u64 },
    #[error(
        "{request}: the registry wants other credentials; log in to it, or check that the user may do this"
    )]
    Unauthorized { request: String },
    #[error("{request}: not found")]
    NotFound { request: String },
    #[error("{request}: the registry answered {code}{message}")]
    Status { request: String, code: u16, message: String, retry_after: Option<Duration> },
    #[error("{request}: the registry is busy and asks to wait {} s; try again then", wait.as_secs())]
    Busy { request: String, wait: Duration },
    #[error("{request}: the answer has more than {limit} bytes")]
    TooLarge { request: String, limit: u64 },
    #[error("cancelled")]
    Cancelled,
    #[error("{request}: {problem}")]
    Protocol { request: String, problem: String },
}

impl RegistryError {
    /// Whether the same request may succeed later: nothing is wrong with it.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            // An address that must not be asked (http instead of https, redirects without end) stays that.
            RegistryError::Connection { source, .. } => !source.is_builder() && !source.is_redirect(),
            RegistryError::Stalled { .. } => true,
            RegistryError::Status { code, .. } => matches!(code, 408 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether no connection was made at all: a wrong name or port, or a certificate that is not trusted.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, RegistryError::Connection { source, .. } if source.is_connect())
    }

    /// How long the registry asked to wait.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            RegistryError::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, RegistryError::NotFound { .. })
    }
}
