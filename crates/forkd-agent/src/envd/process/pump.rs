//! Carries a process's output to its subscribers until the process has ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forkd_envd::Exit;
use forkd_envd::process::{Stream, data_event};
use tokio::time::Instant;

use super::table::Process;
use crate::agent::Agent;
use crate::children::{ExitWatch, Output};

/// Read at once. With it, its base64 and the queue, a subscriber that does not read costs about 200 KiB.
const CHUNK: usize = 32 << 10;
/// After the exit, for those who inherited the output and are about to write (`> >(tee log)`). Daemons that keep it open do not
/// keep the call open.
const AFTER_EXIT: Duration = Duration::from_millis(200);
/// More than a dead process can have left in its pipes (1 MiB each): later output is another process's.
const LEFT_BEHIND: usize = 2 << 20;

#[derive(Debug)]
pub struct Pump {
    pub output: Option<Output>,
    pub error: Option<Output>,
    pub exit: ExitWatch,
}

impl Pump {
    /// Runs as a task of its own.
    pub async fn run(mut self, agent: Arc<Agent>, process: Arc<Process>) {
        let exit = self.until_exit(&process).await;
        self.drain(&process).await;
        agent.processes.ended(&process, exit);
        process.subscribers.end(exit);
        // A process that still writes to the pipe must not die of it. Beside that: a writer may be stuck in an input that another process
        // else keeps open.
        tokio::join!(process.inputs.close(), async {
            while !self.is_silent() {
                self.read().await;
            }
        });
    }

    async fn until_exit(&mut self, process: &Process) -> Exit {
        let mut exit = self.exit.clone();
        loop {
            tokio::select! {
                ended = exit.wait() => return ended,
                // Reading can be given up, publishing cannot: it happens after the other branch is gone.
                (stream, chunk) = self.read(), if !self.is_silent() => publish(process, stream, &chunk).await,
            }
        }
    }

    /// Publishes the output that the process has left in its pipes.
    async fn drain(&mut self, process: &Process) {
        let latest = Instant::now() + AFTER_EXIT;
        let mut taken = 0;
        while !self.is_silent() && (taken < LEFT_BEHIND || Instant::now() < latest) {
            tokio::select! {
                biased;
                (stream, chunk) = self.read() => {
                    taken += chunk.len();
                    publish(process, stream, &chunk).await;
                }
                () = tokio::time::sleep_until(latest) => return,
            }
        }
    }

    fn is_silent(&self) -> bool {
        self.output.is_none() && self.error.is_none()
    }

    /// One chunk of either stream; an empty one when that stream has ended.
    async fn read(&mut self) -> (Stream, Bytes) {
        let terminal = matches!(self.output, Some(Output::Terminal(_)));
        let stdout = if terminal { Stream::Pty } else { Stream::Stdout };
        tokio::select! {
            chunk = read(&mut self.output), if self.output.is_some() => (stdout, chunk),
            chunk = read(&mut self.error), if self.error.is_some() => (Stream::Stderr, chunk),
            else => (stdout, Bytes::new()),
        }
    }
}

/// A stream that has ended, or cannot be read, is closed.
async fn read(stream: &mut Option<Output>) -> Bytes {
    let Some(output) = stream else { return Bytes::new() };
    let chunk = output.read(CHUNK).await.unwrap_or_default();
    if chunk.is_empty() {
        *stream = None;
    }
    chunk
}

async fn publish(process: &Process, stream: Stream, chunk: &[u8]) {
    if !chunk.is_empty() && !process.subscribers.is_empty() {
        process.subscribers.publish(&data_event(stream, chunk)).await;
    }
}
