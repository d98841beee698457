//! What goes into a process.

use forkd_envd::connect::{Code, ConnectError};
use forkd_envd::process::ProcessInput;
use tokio::sync::Mutex;

use super::table::Process;
use crate::children::Input;

/// The writing end, until it is closed. Writers take turns; each waits until the process has taken what it wrote, so nothing is
/// kept here.
#[derive(Debug)]
pub struct ProcessInputs(Mutex<Option<Input>>);

impl ProcessInputs {
    pub fn new(input: Option<Input>) -> Self {
        Self(Mutex::new(input))
    }

    pub async fn close(&self) {
        self.0.lock().await.take();
    }
}

impl Process {
    /// Writes to the process. When the call is given up, a part may have been written.
    pub async fn write(&self, input: ProcessInput) -> Result<(), ConnectError> {
        let data = match (input.stdin, input.pty, &self.terminal) {
            (Some(data), None, None) | (None, Some(data), Some(_)) => data.0,
            (Some(_), None, Some(_)) => {
                return Err(precondition("the process has a terminal: send it pty input"));
            }
            (None, Some(_), None) => {
                return Err(precondition("the process has no terminal: send it stdin input"));
            }
            (_, _, _) => return Err(ConnectError::invalid("the input is neither stdin nor pty")),
        };
        let mut guard = self.inputs.0.lock().await;
        let input = guard.as_mut().ok_or_else(|| precondition("the stdin of the process is closed"))?;
        input.write(&data).await.map_err(|error| precondition(&format!("the process does not read: {error}")))
    }
}

pub fn precondition(message: &str) -> ConnectError {
    ConnectError::new(Code::FailedPrecondition, message)
}
