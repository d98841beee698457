//! PID 1: brings the guest up, then serves over vsock.

#[derive(Debug, thiserror::Error)]
#[error("bringing a guest up is not part of this build; use `forkd-agent serve`")]
pub struct InitError;

pub fn run() -> Result<(), InitError> {
    Err(InitError)
}
