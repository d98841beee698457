//! What every request that fails is answered with.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::hint::HintCode;

/// The body of every response with a status of 400 or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What failed, as text.
    pub error: String,
    /// What failed, as a code.
    pub code: ErrorCode,
    /// What to do about it, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What to do about it, as a code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint_code: Option<HintCode>,
}

/// Each code always comes with the same status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 400: invalid request.
    Malformed,
    /// 401: missing or unknown token.
    Unauthorized,
    /// 403: the token does not allow this.
    Forbidden,
    /// 403: the guest denied access to a file.
    PermissionDenied,
    /// 403: the snapshot is not signed as the daemon's policy or the request requires.
    NotTrusted,
    /// 404: no such object or path.
    NotFound,
    /// 404: no such file in the sandbox.
    FileNotFound,
    /// 405: method not supported.
    MethodNotAllowed,
    /// 408: timed out reading the request.
    RequestTimeout,
    /// 409: the name is in use.
    NameTaken,
    /// 409: other objects depend on it.
    HasDependents,
    /// 409: not possible in the current state.
    WrongState,
    /// 409: the sandbox ended while the request ran; the text has the reason.
    SandboxEnded,
    /// 409: the idempotency key was used for another request.
    IdempotencyMismatch,
    /// 409: the path in the sandbox is a directory, expected a file.
    IsDirectory,
    /// 409: the path in the sandbox, or a parent of it, is not a directory.
    NotDirectory,
    /// 413: the request's body is too large.
    TooLarge,
    /// 415: unsupported content type.
    UnsupportedMediaType,
    /// 416: the file does not have the requested range.
    RangeNotSatisfiable,
    /// 422: the build is invalid, or a command of it failed.
    BuildFailed,
    /// 429: too many requests, or too many of something at once.
    TooMany,
    /// 502: invalid response from the guest.
    GuestFailed,
    /// 502: no process listens on the port of the sandbox.
    PortClosed,
    /// 502: invalid response from a registry or a mirror.
    UpstreamFailed,
    /// 504: timed out waiting for the guest.
    GuestTimeout,
    /// 507: not enough memory on this host.
    NoMemory,
    /// 507: not enough disk space on this host.
    NoDisk,
    /// 507: the disk of the sandbox is full.
    GuestDiskFull,
    /// 503: the daemon is stopping, or not ready yet.
    Unavailable,
    /// 500: internal error of the daemon.
    Internal,
}

impl ErrorCode {
    /// The HTTP status that goes with it.
    pub fn status(self) -> u16 {
        match self {
            ErrorCode::Malformed => 400,
            ErrorCode::Unauthorized => 401,
            ErrorCode::Forbidden | ErrorCode::PermissionDenied | ErrorCode::NotTrusted => 403,
            ErrorCode::NotFound | ErrorCode::FileNotFound => 404,
            ErrorCode::MethodNotAllowed => 405,
            ErrorCode::RequestTimeout => 408,
            ErrorCode::NameTaken
            | ErrorCode::HasDependents
            | ErrorCode::WrongState
            | ErrorCode::SandboxEnded
            | ErrorCode::IsDirectory
            | ErrorCode::NotDirectory
            | ErrorCode::IdempotencyMismatch => 409,
            ErrorCode::TooLarge => 413,
            ErrorCode::UnsupportedMediaType => 415,
            ErrorCode::RangeNotSatisfiable => 416,
            ErrorCode::BuildFailed => 422,
            ErrorCode::TooMany => 429,
            ErrorCode::Internal => 500,
            ErrorCode::GuestFailed | ErrorCode::PortClosed | ErrorCode::UpstreamFailed => 502,
            ErrorCode::Unavailable => 503,
            ErrorCode::GuestTimeout => 504,
            ErrorCode::NoMemory | ErrorCode::NoDisk | ErrorCode::GuestDiskFull => 507,
        }
    }
}
