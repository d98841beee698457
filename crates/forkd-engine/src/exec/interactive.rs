//! An interactive program: what it reads comes as it is typed, and it may have a terminal.

use std::time::Duration;

use bytes::Bytes;
use forkd_api::exec::ExecEvent;
use forkd_envd::Signal;
use forkd_envd::process::{
    CLOSE_STDIN, ProcessInput, SEND_INPUT, SEND_SIGNAL, SelectRequest, Selector, SendInputRequest,
    SendSignalRequest, TerminalSize, UPDATE, UpdateRequest,
};
use serde::Serialize;
use serde_json::Value;

use super::{ExecError, PIECE, Program, Running, begin};
use crate::agent::{Agent, AgentError, Connection};

/// A call that does not wait for the program.
const CALL: Duration = Duration::from_secs(30);
/// What a terminal makes the end of the input of.
const END_OF_TRANSMISSION: &[u8] = &[4];

/// Starts a program whose input stays open; with a size, it has a terminal. What the program would read at once is not taken
/// from `program`: it is the first to be written.
pub async fn interact(
    agent: &Agent,
    program: &Program<'_>,
    terminal: Option<TerminalSize>,
) -> Result<(Running, Input, Remote), ExecError> {
    let mut running = begin(agent, program, true, terminal.map(Into::into)).await?;
    let first = running.next().await?;
    let ExecEvent::Started { pid } = first else {
        return Err(ExecError::Protocol("a message of the program came before it was started".into()));
    };
    running.events.push_front(first);
    Ok((running, Input::of(agent, pid, terminal.is_some()), Remote::of(agent, pid)))
}

/// Where a program reads from.
#[derive(Debug)]
pub struct Input {
    pub(super) agent: Agent,
    pub(super) pid: u32,
    pub(super) terminal: bool,
    pub(super) connection: Option<Connection>,
}

impl Input {
    /// Writes, and waits until the program has taken it, however long that is. One that does not read to the end has its
    /// reasons: it is an error here, and the program keeps running.
    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), AgentError> {
        for piece in bytes.chunks(PIECE) {
            let piece = Bytes::copy_from_slice(piece);
            let input = if self.terminal { ProcessInput::pty(piece) } else { ProcessInput::stdin(piece) };
            self.post(SEND_INPUT, &SendInputRequest { process: Selector::pid(self.pid), input }).await?;
        }
        Ok(())
    }

    /// Ends what it reads; at a terminal, as Ctrl-D does.
    pub async fn close(&mut self) -> Result<(), AgentError> {
        match self.terminal {
            true => self.write(END_OF_TRANSMISSION).await,
            false => self.post(CLOSE_STDIN, &SelectRequest { process: Selector::pid(self.pid) }).await,
        }
    }

    /// One connection for all that is typed: in its order, and without a new one for each key.
    async fn post(&mut self, path: &str, request: &impl Serialize) -> Result<(), AgentError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            None => self.connection.insert(self.agent.connect().await?),
        };
        connection.post::<Value>(path, request).await.map(drop)
    }
}

/// What can be done to a program beside what it reads, at any time.
#[derive(Debug, Clone)]
pub struct Remote {
    pub(super) agent: Agent,
    pub(super) pid: u32,
}

impl Remote {
    /// Signals it and its process group.
    pub async fn signal(&self, signal: Signal) -> Result<(), AgentError> {
        let request = SendSignalRequest::new(Selector::pid(self.pid), signal);
        self.agent.post::<Value>(SEND_SIGNAL, &request, CALL).await.map(drop)
    }

    /// Ends the input of a program without a terminal, for a client that does not write any more.
    pub async fn close_stdin(&self) -> Result<(), AgentError> {
        let request = SelectRequest { process: Selector::pid(self.pid) };
        self.agent.post::<Value>(CLOSE_STDIN, &request, CALL).await.map(drop)
    }

    /// Gives its terminal another size.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), AgentError> {
        let request = UpdateRequest { process: Selector::pid(self.pid), pty: Some(size.into()) };
        self.agent.post::<Value>(UPDATE, &request, CALL).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use forkd_envd::Exit;
    use forkd_envd::connect::end;
    use forkd_envd::process::{Stream, data_event, end_event, start_event};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;
    use crate::guest::Guest;
    use crate::testing::accept;

    const DONE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";

    #[tokio::test]
    async fn a_terminal_is_typed_at_resized_and_hung_up() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        let agent = tokio::spawn(async move {
            let (mut program, start) = accept(&listener).await;
            program.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n").await.unwrap();
            let prompt = data_event(Stream::Pty, b"$ ");
            program.write_all(&[start_event(7), prompt].concat()).await.unwrap();
            // All that is typed comes over one connection.
            let (mut typing, first) = accept(&listener).await;
            typing.write_all(DONE).await.unwrap();
            let mut second = vec![0; 4096];
            let read = typing.read(&mut second).await.unwrap();
            typing.write_all(DONE).await.unwrap();
            let mut calls = vec![start, first, String::from_utf8_lossy(&second[..read]).into_owned()];
            for _ in 0..2 {
                let (mut client, call) = accept(&listener).await;
                client.write_all(DONE).await.unwrap();
                calls.push(call);
            }
            program.write_all(&[end_event(Exit::Signal(1)), end(&Ok(()))].concat()).await.unwrap();
            calls
        });
        let (arguments, env) = (["sh".to_owned()], BTreeMap::new());
        let program =
            Program { arguments: &arguments, env: &env, workdir: "", user: None, stdin: None, limit: None };
        let size = |columns, rows| TerminalSize { columns, rows };
        let guest = Agent::new(Guest::new(path));
        let (mut running, mut input, remote) = interact(&guest, &program, Some(size(80, 24))).await.unwrap();
        assert_eq!(running.next().await.unwrap(), ExecEvent::Started { pid: 7 });
        assert_eq!(running.next().await.unwrap(), ExecEvent::Stdout("$ ".into()));
        input.write(b"ls\n").await.unwrap();
        input.close().await.unwrap();
        remote.resize(size(132, 50)).await.unwrap();
        remote.signal(Signal::Hup).await.unwrap();
        let exited = ExecEvent::Exited { exit_code: 129, timed_out: false };
        assert_eq!(running.next().await.unwrap(), exited);
        let calls = agent.await.unwrap();
        for (call, part) in calls.iter().zip([
            r#""pty":{"size":{"cols":80,"rows":24}}"#,
            r#""input":{"pty":"bHMK"}"#,
            r#""input":{"pty":"BA=="}"#,
            r#""pty":{"size":{"cols":132,"rows":50}}"#,
            r#""signal":"SIGNAL_SIGHUP""#,
        ]) {
            assert!(call.contains(part), "{part}: {call}");
        }
    }
}
