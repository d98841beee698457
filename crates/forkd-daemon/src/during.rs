//! Requests that need a guest, and the end of its sandbox.
//!
//! What a guest's connection says when its VM process ends is of no use to a caller: reset, broken off, not HTTP. The engine knows
//! the reason. So every request to a guest is made here, and one that fails because the sandbox ends is answered with that.

use std::pin::pin;
use std::time::Duration;

use forkd_api::error::ErrorCode;
use forkd_engine::{EngineError, SandboxHandle};

use crate::error::{Answer, ApiError};

/// What a request gets after the end, for an answer that the guest had given before.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Does what needs a sandbox's guest. If the sandbox ends meanwhile, that is the answer.
pub async fn during<T, E: Into<ApiError>>(
    sandbox: &SandboxHandle,
    work: impl Future<Output = Result<T, E>>,
) -> Answer<T> {
    forkd_proto::passes!();
    let mut work = pin!(work);
    tokio::select! {
        biased;
        result = work.as_mut() => match result {
            Ok(done) => Ok(done),
            Err(error) => Err(explained(sandbox, error.into()).await),
        },
        reason = sandbox.end() => match tokio::time::timeout(LAST_WORDS, work).await {
            Ok(Ok(done)) => Ok(done),
            _ => Err(ended(reason)),
        },
    }
}

/// Why a request has failed: the sandbox's end, if that explains it.
async fn explained(sandbox: &SandboxHandle, error: ApiError) -> ApiError {
    // What a guest, or this daemon, refuses is said by that one.
    let may_be_the_end = matches!(
        error.code(),
        ErrorCode::GuestFailed | ErrorCode::GuestTimeout | ErrorCode::PortClosed | ErrorCode::Internal
    );
    if !may_be_the_end {
        return error;
    }
    match sandbox.end_after_failure().await {
        Some(reason) => ended(reason),
        None => error,
    }
}

fn ended(reason: String) -> ApiError {
    EngineError::EndedMeanwhile(reason).into()
}
