//! Commands and code in a sandbox.

use std::time::Duration;

use forkd_api::code::{Eval, Evaluated};
use forkd_api::exec::{Exec, ExecEvent, Executed};

use crate::error::ClientError;
use crate::exchange::{Client, Request};
use crate::lines::Lines;
use crate::sandboxes::path;

/// What the daemon gets beyond a command's own time, to say that it is over.
const GRACE: Duration = Duration::from_secs(60);

fn limit(seconds: u64) -> Duration {
    Duration::from_secs(seconds).saturating_add(GRACE)
}

impl Client {
    /// Runs a program, and waits for its end.
    pub async fn exec(&self, id: &str, wanted: &Exec) -> Result<Executed, ClientError> {
        self.ask(Request::post(path(id, "/exec")).json(wanted).within(limit(wanted.timeout_secs))).await
    }

    pub(crate) async fn exec_lines(&self, id: &str, wanted: &Exec) -> Result<Lines<ExecEvent>, ClientError> {
        self.lines(Request::post(path(id, "/exec")).json(wanted).within(limit(wanted.timeout_secs))).await
    }

    /// Runs code in an interpreter that keeps its state.
    pub async fn eval(&self, id: &str, wanted: &Eval) -> Result<Evaluated, ClientError> {
        self.ask(Request::post(path(id, "/eval")).json(wanted).within(limit(wanted.timeout_secs))).await
    }
}
