//! The way from the host to any port of the guest, without a network: the host connects over vsock and says where to.
//!
//! ```text
//!   host                         agent                        127.0.0.1:8000
//!    │ "tcp 127.0.0.1:8000\n" ──▶ │ ── connect ────────────────▶ │
//!    │ ◀────────────────── "OK\n" │                              │
//!    │ ◀═════ bytes both ways; each side's end is passed on ════▶ │
//! ```
//!
//! Instead of `OK` it may be `ERR closed …` (no process listens there) or `ERR failed …` (anything else).

mod target;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Semaphore;

use crate::agent::Agent;
use crate::server::Accept;
use target::{Target, TargetError};

const MAX_CONNECTIONS: usize = 1024;
const MAX_LINE: usize = 512;
/// For the line, and for the connection.
const PATIENCE: Duration = Duration::from_secs(10);
const BUFFER: usize = 16 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("failed {0}")]
    Target(#[from] TargetError),
    #[error("failed no line within {MAX_LINE} bytes and {} s", PATIENCE.as_secs())]
    Line,
    #[error("failed {0}")]
    Gate(#[from] crate::identity::Closed),
    #[error("closed no process listens there")]
    Closed,
    #[error("failed the connection took more than {} s", PATIENCE.as_secs())]
    Slow,
    #[error("failed {0}")]
    Io(#[from] io::Error),
}

/// Accepts and serves, without end.
pub async fn serve(mut listener: impl Accept, agent: Arc<Agent>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok(stream) = listener.accept().await else {
            // No descriptors left, mostly: the loop must not spin.
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let agent = Arc::clone(&agent);
        tokio::spawn(async move {
            // One of the two ends went away, or both are done.
            let _ = tunnel(stream, &agent).await;
            drop(place);
        });
    }
}

trait Both: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Both for T {}

async fn tunnel(mut host: impl Both, agent: &Agent) -> io::Result<()> {
    match open(&mut host, agent).await {
        Ok((mut inside, early)) => {
            host.write_all(b"OK\n").await?;
            inside.write_all(&early).await?;
            copy_bidirectional_with_sizes(&mut host, &mut inside, BUFFER, BUFFER).await?;
            Ok(())
        }
        Err(error) => {
            let text: String =
                error.to_string().chars().filter(|character| !character.is_control()).collect();
            host.write_all(format!("ERR {text}\n").as_bytes()).await?;
            host.shutdown().await
        }
    }
}

/// The connection inside, and what the host sent behind its line.
async fn open(host: &mut impl Both, agent: &Agent) -> Result<(Box<dyn Both>, Vec<u8>), DialError> {
    let line = tokio::time::timeout(PATIENCE, read_line(host)).await;
    let (line, early) = line.map_err(|_| DialError::Line)??;
    let target = target::parse(&line)?;
    agent.gate.pass().await?;
    let connected = tokio::time::timeout(PATIENCE, connect(&target)).await.map_err(|_| DialError::Slow)?;
    match connected {
        Ok(inside) => Ok((inside, early)),
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            Err(DialError::Closed)
        }
        Err(error) => Err(error.into()),
    }
}

async fn connect(target: &Target) -> io::Result<Box<dyn Both>> {
    match target {
        Target::Unix(path) => Ok(Box::new(UnixStream::connect(path).await?)),
        Target::Tcp(addresses) => {
            let mut refusal = io::Error::from(io::ErrorKind::ConnectionRefused);
            for address in addresses {
                match TcpStream::connect(address).await {
                    // If nothing listens, TCP may take the very port for this end, and connect it to itself.
                    Ok(stream) if stream.local_addr()? == stream.peer_addr()? => {}
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        return Ok(Box::new(stream));
                    }
                    Err(error) => refusal = error,
                }
            }
            Err(refusal)
        }
    }
}

async fn read_line(host: &mut impl Both) -> Result<(Vec<u8>, Vec<u8>), DialError> {
    let mut received = Vec::new();
    loop {
        if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
            let early = received.split_off(end + 1);
            received.pop();
            return Ok((received, early));
        }
        let mut chunk = [0; MAX_LINE];
        let free = MAX_LINE.saturating_sub(received.len());
        let length = host.read(chunk.get_mut(..free).unwrap_or_default()).await?;
        if length == 0 {
            return Err(DialError::Line);
        }
        received.extend_from_slice(chunk.get(..length).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;
    use tokio::net::TcpListener;

    use super::*;
    use crate::agent::Settings;

    fn run<F: Future<Output = ()>>(test: impl FnOnce(Arc<Agent>) -> F) {
        crate::runtime::new().unwrap().block_on(async {
            test(Arc::new(crate::testing::agent(Settings::default()))).await;
        });
    }

    fn dial(agent: &Arc<Agent>) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 10);
        let agent = Arc::clone(agent);
        tokio::spawn(async move { tunnel(theirs, &agent).await });
        ours
    }

    async fn answer(agent: &Arc<Agent>, line: &str) -> String {
        let mut host = dial(agent);
        host.write_all(line.as_bytes()).await.unwrap();
        let mut text = String::new();
        host.read_to_string(&mut text).await.unwrap();
        text
    }

    #[test]
    fn bytes_and_ends_go_both_ways() {
        run(async |agent| {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut all = Vec::new();
                // The whole is echoed after the other side has ended: half a connection stays open.
                stream.read_to_end(&mut all).await.unwrap();
                stream.write_all(&all).await.unwrap();
            });
            let mut host = dial(&agent);
            let data = vec![7; 300_000];
            host.write_all(format!("tcp localhost:{port}\nearly").as_bytes()).await.unwrap();
            let mut ok = [0; 3];
            host.read_exact(&mut ok).await.unwrap();
            assert_eq!(&ok, b"OK\n");
            host.write_all(&data).await.unwrap();
            host.shutdown().await.unwrap();
            let mut back = Vec::new();
            host.read_to_end(&mut back).await.unwrap();
            server.await.unwrap();
            assert_eq!((back.len(), &back[..6]), (data.len() + 5, &b"early\x07"[..]));
        });
    }

    #[test]
    fn a_port_that_is_not_open_is_told_apart() {
        run(async |agent| {
            // Bound, so that no other test gets the port, and not listening.
            let silent = tokio::net::TcpSocket::new_v4().unwrap();
            silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
            let free = silent.local_addr().unwrap();
            assert_eq!(
                answer(&agent, &format!("tcp {free}\n")).await,
                "ERR closed no process listens there\n"
            );
            assert_eq!(
                answer(&agent, "unix /nowhere/at/all\n").await,
                "ERR closed no process listens there\n"
            );
            for line in ["\n", "udp 1.2.3.4:5\n", "tcp x\n", &"t".repeat(600)] {
                assert!(answer(&agent, line).await.starts_with("ERR failed "), "{line}");
            }
        });
    }

    #[test]
    fn unix_sockets_are_reached_too() {
        run(async |agent| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("s");
            let listener = tokio::net::UnixListener::bind(&path).unwrap();
            tokio::spawn(async move { listener.accept().await.unwrap().0.write_all(b"hello").await });
            assert_eq!(answer(&agent, &format!("unix {}\n", path.display())).await, "OK\nhello");
        });
    }
}
