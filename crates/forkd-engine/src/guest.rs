//! Connections into a guest, over its vsock.
//!
//! Each is new: one that was open when a VM was forked or restored leads nowhere, and a request over it would wait for ever.

use std::io;
use std::path::{Path, PathBuf};

use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::UnixStream;

/// What the VM process answers with is a word and a number.
const MAX_ANSWER: usize = 64;

/// The way into one guest: the Unix socket that its VM process listens on.
#[derive(Debug, Clone)]
pub struct Guest {
    socket: PathBuf,
}

/// A port of the guest was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot connect to the VM's socket {}", path.display())]
    Socket { path: PathBuf, source: io::Error },
    #[error("no process listens on the guest's vsock port {port}")]
    Refused { port: u32 },
    #[error("the VM process answered {0:?} to a connection")]
    Answer(String),
}

impl Guest {
    pub fn new(socket: impl Into<PathBuf>) -> Guest {
        Guest { socket: socket.into() }
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Connects to a vsock port of the guest.
    pub async fn connect(&self, port: u32) -> Result<UnixStream, ConnectError> {
        forkd_proto::passes!();
        let failed = |source| ConnectError::Socket { path: self.socket.clone(), source };
        let mut stream = UnixStream::connect(&self.socket).await.map_err(failed)?;
        stream.write_all(format!("CONNECT {port}\n").as_bytes()).await.map_err(failed)?;
        let answer = read_line(&stream).await.map_err(failed)?;
        match answer.strip_suffix(b"\n") {
            Some(line) if line.starts_with(b"OK ") => Ok(stream),
            // The VM process closes a connection that the guest has refused.
            None if answer.is_empty() => Err(ConnectError::Refused { port }),
            None if answer.len() <= MAX_ANSWER => Err(failed(io::ErrorKind::UnexpectedEof.into())),
            line => Err(ConnectError::Answer(String::from_utf8_lossy(line.unwrap_or(&answer)).into_owned())),
        }
    }
}

/// A line, or what there is of one that is too long or has no end.
async fn read_line(stream: &UnixStream) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while line.len() <= MAX_ANSWER && !line.ends_with(b"\n") {
        let most = MAX_ANSWER + 1 - line.len();
        let more = stream.async_io(Interest::READABLE, || take_line(stream, most)).await?;
        if more.is_empty() {
            break;
        }
        line.extend(more);
    }
    Ok(line)
}

/// As much of a line as is there now. What comes after it is the guest's: looking first leaves that in the socket.
fn take_line(stream: &UnixStream, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let (seen, _) = recv(stream, &mut bytes[..], RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
    let line = bytes[..seen].iter().position(|byte| *byte == b'\n').map_or(seen, |end| end + 1);
    bytes.truncate(line);
    if line > 0 {
        let (taken, _) = recv(stream, &mut bytes[..], RecvFlags::DONTWAIT)?;
        bytes.truncate(taken);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;

    /// A VM process that answers every client with these bytes and closes.
    fn answering(answer: &'static [u8]) -> (tempfile::TempDir, Guest) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("vsock");
        let listener = UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut line = [0; 64];
                let read = client.read(&mut line).await.unwrap();
                assert_eq!(&line[..read], b"CONNECT 49983\n");
                client.write_all(answer).await.unwrap();
            }
        });
        (directory, Guest::new(path))
    }

    #[tokio::test]
    async fn what_follows_the_answer_is_the_guest_s() {
        let (_directory, guest) = answering(b"OK 1073741824\nhello");
        let mut stream = guest.connect(49983).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        assert_eq!(text, "hello");
    }

    #[tokio::test]
    async fn refusals_and_nonsense_are_told_apart() {
        let (_directory, guest) = answering(b"");
        assert!(matches!(guest.connect(49983).await, Err(ConnectError::Refused { port: 49983 })));
        let (_directory, guest) = answering(b"NO\n");
        assert!(matches!(guest.connect(49983).await, Err(ConnectError::Answer(answer)) if answer == "NO"));
        let (_directory, guest) = answering(b"OK 10");
        let broken = guest.connect(49983).await.unwrap_err();
        assert!(
            matches!(&broken, ConnectError::Socket { source, .. } if source.kind() == io::ErrorKind::UnexpectedEof),
            "{broken:?}"
        );
        let (_directory, guest) = answering(&[b'x'; 1000]);
        assert!(matches!(guest.connect(49983).await, Err(ConnectError::Answer(_))));
        let gone = Guest::new("/nowhere/vsock");
        assert!(matches!(gone.connect(49983).await, Err(ConnectError::Socket { .. })));
    }
}
