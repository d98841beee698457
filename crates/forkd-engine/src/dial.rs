//! Connections to the ports of a guest: through its agent, which connects inside. The agent's own services are on vsock ports of
//! the same numbers as E2B has them, and are reached without it.
//!
//! ```text
//!   here ── vsock port 1: "tcp localhost:8000\n" ──▶ agent ──▶ localhost:8000
//!        ◀── "OK\n", or "ERR closed …", "ERR failed …"
//! ```

use std::io;
use std::time::Duration;

use forkd_envd::port::is_agents;
use forkd_proto::agent::DIAL_PORT;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::agent::Agent;
use crate::guest::ConnectError;

const MAX_ANSWER: usize = 600;
/// The agent has its own patience with a gate and with a port, which is shorter.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, thiserror::Error)]
pub enum DialError {
    #[error("no process listens on port {0} of the sandbox")]
    Closed(u16),
    #[error("cannot reach port {port} of the sandbox: {reason}")]
    Failed { port: u16, reason: String },
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the connection to the guest broke")]
    Io(#[from] io::Error),
    #[error("timed out connecting to port {0} of the sandbox")]
    Timeout(u16),
}

/// Connects to a port of the guest.
pub async fn dial(agent: &Agent, port: u16) -> Result<UnixStream, DialError> {
    tokio::time::timeout(PATIENCE, connect(agent, port)).await.unwrap_or(Err(DialError::Timeout(port)))
}

async fn connect(agent: &Agent, port: u16) -> Result<UnixStream, DialError> {
    if is_agents(port) {
        return match agent.guest().connect(port.into()).await {
            Err(ConnectError::Refused { .. }) => Err(DialError::Closed(port)),
            connected => Ok(connected?),
        };
    }
    let mut stream = agent.guest().connect(DIAL_PORT).await?;
    stream.write_all(format!("tcp localhost:{port}\n").as_bytes()).await?;
    let mut answer = Vec::new();
    // Byte by byte: what comes after the line is the port's.
    loop {
        match stream.read_u8().await? {
            b'\n' => break,
            byte if answer.len() < MAX_ANSWER => answer.push(byte),
            _ => break,
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    match (&*answer, answer.strip_prefix("ERR ")) {
        ("OK", _) => Ok(stream),
        (_, Some(reason)) if reason.starts_with("closed") => Err(DialError::Closed(port)),
        (_, reason) => {
            let reason = reason.map_or("cannot parse the agent's answer", |reason| reason);
            Err(DialError::Failed {
                port,
                reason: reason.strip_prefix("failed ").unwrap_or(reason).to_owned(),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;
    use crate::guest::Guest;

    /// What is asked for, and what comes of it if the agent answers with this.
    async fn dialed(port: u16, answer: &'static [u8]) -> (String, Result<UnixStream, DialError>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        let agent = tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut asked = [0; 64];
            let read = client.read(&mut asked).await.unwrap();
            client.write_all(b"OK 1\n").await.unwrap();
            let mut asked = String::from_utf8_lossy(&asked[..read]).into_owned();
            if !is_agents(port) {
                let mut line = [0; 64];
                let read = client.read(&mut line).await.unwrap();
                asked += &String::from_utf8_lossy(&line[..read]);
            }
            client.write_all(answer).await.unwrap();
            asked
        });
        let dialed = dial(&Agent::new(Guest::new(path)), port).await;
        (agent.await.unwrap(), dialed)
    }

    #[tokio::test]
    async fn what_follows_the_line_is_the_port_s() {
        let (asked, stream) = dialed(8000, b"OK\nhello").await;
        assert_eq!(asked, "CONNECT 1\ntcp localhost:8000\n");
        let mut text = String::new();
        stream.unwrap().read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
        let (asked, stream) = dialed(49983, b"").await;
        assert_eq!((asked.as_str(), stream.is_ok()), ("CONNECT 49983\n", true));
    }

    #[tokio::test]
    async fn refusals_are_told_apart() {
        assert!(matches!(dialed(80, b"ERR closed nobody\n").await.1, Err(DialError::Closed(80))));
        let failed = dialed(80, b"ERR failed no route\n").await.1.unwrap_err().to_string();
        assert_eq!(failed, "cannot reach port 80 of the sandbox: no route");
        for garbage in [&b"what\n"[..], b"ERR\n", &[b'x'; 2000]] {
            assert!(matches!(dialed(80, garbage).await.1, Err(DialError::Failed { .. })));
        }
        assert!(matches!(dialed(80, b"").await.1, Err(DialError::Io(_))));
    }
}
