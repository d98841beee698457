//! What every request that fails is answered with.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::hint::HintCode;

/// The body of every answer with a status of 400 or more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What failed, for people.
    pub error: String,
    /// What failed, for programs.
    pub code: ErrorCode,
    /// What to do about it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// What to do about it, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint_code: Option<HintCode>,
}

/// Each code always comes with the same status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 400: not a request, or one that makes no sense.
    Malformed,
    /// 401: no token, or one that is not known.
    Unauthorized,
    /// 403: the token does not allow this.
    Forbidden,
    /// 403: the guest does not allow this, for a file of its own.
    PermissionDenied,
    /// 403: the snapshot is not signed as the daemon's policy or the request demands.
    NotTrusted,
    /// 404: there is no such thing, or no such path.
    NotFound,
    /// 404: the sandbox has no such file.
    FileNotFound,
    /// 405: not this method.
    MethodNotAllowed,
    /// 408: the request did not come to its end in time.
    RequestTimeout,
    /// 409: the name is in use.
    NameTaken,
    /// 409: others depend on it.
    HasDependents,
    /// 409: not possible in the state it is in.
    WrongState,
    /// 409: the sandbox ended while the request ran; the text has the reason.
    SandboxEnded,
    /// 409: the idempotency key was used for another request.
    IdempotencyMismatch,
    /// 409: the path is a directory of the sandbox, and should be a file.
    IsDirectory,
    /// 409: the path, or one above it, is not a directory of the sandbox, and should be one.
    NotDirectory,
    /// 413: the request's body is too large.
    TooLarge,
    /// 415: not this type of content.
    UnsupportedMediaType,
    /// 416: the file does not have the part that is asked for.
    RangeNotSatisfiable,
    /// 422: what was to be built cannot be, as it is written, or a command of it failed.
    BuildFailed,
    /// 429: too many requests, or too many of something at once.
    TooMany,
    /// 502: what runs in the guest gave no answer that can be used.
    GuestFailed,
    /// 502: nobody listens on the port of the sandbox.
    PortClosed,
    /// 502: a registry or a mirror gave no answer that can be used.
    UpstreamFailed,
    /// 504: what runs in the guest took too long.
    GuestTimeout,
    /// 507: not enough memory on this host.
    NoMemory,
    /// 507: not enough disk space on this host.
    NoDisk,
    /// 507: the disk of the sandbox is full.
    GuestDiskFull,
    /// 503: the daemon is about to end, or not ready yet.
    Unavailable,
    /// 500: the daemon's fault.
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
