//! Commands and code in a sandbox, and what they run in.

use std::time::Duration;

use bytes::Bytes;
use forkd_api::code::{CodeContext, CreateCodeContext, Eval, EvalEvent, Evaluated, Interrupt, Interrupted};
use forkd_api::exec::{
    Exec, ExecEvent, Executed, MAX_STDIN, Process, SendSignal, Signal, StartProcess, StartedProcess,
};
use hyper::Method;

use crate::body::Body;
use crate::error::ClientError;
use crate::exchange::{Client, Request, part};
use crate::files::BYTES;
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

    /// The same, and what it prints and displays comes as it happens; `Ended` is the last. Code whose reader goes away is
    /// interrupted.
    pub async fn eval_lines(&self, id: &str, wanted: &Eval) -> Result<Lines<EvalEvent>, ClientError> {
        self.lines(Request::post(path(id, "/eval")).json(wanted).within(limit(wanted.timeout_secs))).await
    }

    pub async fn contexts(&self, id: &str) -> Result<Vec<CodeContext>, ClientError> {
        self.ask(Request::get(path(id, "/contexts"))).await
    }

    pub async fn create_context(
        &self,
        id: &str,
        wanted: &CreateCodeContext,
    ) -> Result<CodeContext, ClientError> {
        self.ask(Request::post(path(id, "/contexts")).json(wanted)).await
    }

    pub async fn remove_context(&self, id: &str, context: &str) -> Result<(), ClientError> {
        self.tell(Request::new(Method::DELETE, context_path(id, context, ""))).await
    }

    /// Gives a context a new interpreter.
    pub async fn restart_context(&self, id: &str, context: &str) -> Result<(), ClientError> {
        self.tell(Request::post(context_path(id, context, "/restart"))).await
    }

    /// Interrupts the code that runs in a context; what does not end within the grace is ended with its interpreter.
    pub async fn interrupt_context(
        &self,
        id: &str,
        context: &str,
        grace_secs: u64,
    ) -> Result<Interrupted, ClientError> {
        let request = Request::post(context_path(id, context, "/interrupt")).json(&Interrupt { grace_secs });
        self.ask(request.within(limit(grace_secs))).await
    }

    /// The programs that clients have started and that run.
    pub async fn processes(&self, id: &str) -> Result<Vec<Process>, ClientError> {
        self.ask(Request::get(path(id, "/processes"))).await
    }

    /// Starts a program in the background.
    pub async fn start_process(
        &self,
        id: &str,
        wanted: &StartProcess,
    ) -> Result<StartedProcess, ClientError> {
        self.ask(Request::post(path(id, "/processes")).json(wanted)).await
    }

    /// Signals a program, and all that are in its process group.
    pub async fn signal_process(&self, id: &str, pid: u32, signal: Signal) -> Result<(), ClientError> {
        self.tell(Request::post(path(id, &format!("/processes/{pid}/signal"))).json(&SendSignal { signal }))
            .await
    }

    /// Writes to a program, and waits until it has taken all; with `close`, it then reads the end.
    pub async fn write_process(
        &self,
        id: &str,
        pid: u32,
        mut bytes: Bytes,
        close: bool,
    ) -> Result<(), ClientError> {
        loop {
            let piece = bytes.split_to(bytes.len().min(MAX_STDIN));
            let last = bytes.is_empty();
            let query = if close && last { "?close=true" } else { "" };
            let request = Request::post(path(id, &format!("/processes/{pid}/stdin{query}")));
            self.tell(request.body(BYTES, Body::Whole(Some(piece))).within(limit(60))).await?;
            if last {
                return Ok(());
            }
        }
    }
}

fn context_path(id: &str, context: &str, below: &str) -> String {
    path(id, &format!("/contexts/{}{below}", part(context)))
}
