//! Whether the client of a connection left, or this guest was forked and has lost the connection with all others.
//!
//! The host tells a forked guest by a transport reset of its vsock. Linux then puts every connected socket into the state of one
//! that never was connected: reading and writing fail with `ENOTCONN`. A client that leaves, however it does, ends its
//! connection in order: reading finds the end, writing fails with `EPIPE`. So the error says which of the two it was, for each
//! connection, without a call of the host around the fork and at whatever moment it came.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The client of one connection; an extension of every request that comes over it. Clones are the same client.
#[derive(Debug, Clone, Default)]
pub struct Peer(Arc<AtomicBool>);

impl Peer {
    /// Whether the connection was lost in a fork. It is set before anything of the connection is dropped.
    pub fn lost_in_fork(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set_lost_in_fork(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A stream that notes how it ends.
#[derive(Debug)]
pub struct Watched<S> {
    stream: S,
    peer: Peer,
    is_transport_reset: fn(&io::Error) -> bool,
}

impl<S> Watched<S> {
    pub fn new(stream: S, peer: Peer, is_transport_reset: fn(&io::Error) -> bool) -> Self {
        Self { stream, peer, is_transport_reset }
    }

    fn note<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &result
            && (self.is_transport_reset)(error)
        {
            self.peer.set_lost_in_fork();
        }
        result
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.note(result)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.note(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;
    use tokio::sync::mpsc;

    use super::*;
    use crate::agent::Settings;
    use crate::server::{Accept, serve};
    use crate::{routers, runtime, testing, users};

    /// A connection whose end is that of its client, or that of all connections.
    struct Connection {
        stream: UnixStream,
        ends_in_reset: bool,
    }

    impl AsyncRead for Connection {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let before = buffer.filled().len();
            match Pin::new(&mut self.stream).poll_read(context, buffer) {
                Poll::Ready(read)
                    if self.ends_in_reset && (read.is_err() || buffer.filled().len() == before) =>
                {
                    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
                }
                other => other,
            }
        }
    }

    impl AsyncWrite for Connection {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            match Pin::new(&mut self.stream).poll_write(context, bytes) {
                Poll::Ready(Err(_)) if self.ends_in_reset => {
                    Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
                }
                other => other,
            }
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }

    impl Accept for mpsc::Receiver<Connection> {
        type Stream = Connection;

        async fn accept(&mut self) -> io::Result<Connection> {
            match self.recv().await {
                Some(connection) => Ok(connection),
                None => std::future::pending().await,
            }
        }

        fn is_transport_reset(error: &io::Error) -> bool {
            error.kind() == io::ErrorKind::NotConnected
        }
    }

    /// Sends a request and reads until the answer has this in it.
    async fn execute(clients: &mpsc::Sender<Connection>, reset: bool, code: &str, until: &str) -> UnixStream {
        let (mut client, stream) = UnixStream::pair().unwrap();
        clients.send(Connection { stream, ends_in_reset: reset }).await.unwrap();
        let body = serde_json::json!({ "code": code }).to_string();
        let request =
            format!("POST /execute HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        client.write_all(request.as_bytes()).await.unwrap();
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        while !text.contains(until) {
            let reading = tokio::time::timeout(Duration::from_secs(30), client.read(&mut buffer));
            let count = reading.await.expect(&text).unwrap();
            assert!(count > 0, "{text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        client
    }

    #[test]
    fn code_is_interrupted_when_its_client_leaves_and_runs_on_when_it_is_lost_in_a_fork() {
        runtime::new().unwrap().block_on(async {
            let settings = Settings { default_user: users::current().name, ..Settings::default() };
            let agent = Arc::new(testing::agent(settings));
            let (clients, accepted) = mpsc::channel(1);
            tokio::spawn(serve(accepted, routers::interpreter(&agent)));
            // It prints all the time: unread output must not stop it.
            let count = "import time\nsteps = 0\nfor _ in range(50):\n    steps += 1\n    print('x' * 10000)\n    time.sleep(0.01)";
            for (reset, steps) in [(true, "=50=\""), (false, "=cut short=\"")] {
                drop(execute(&clients, reset, count, "xxx").await);
                let ask = "f'={steps if steps == 50 else \"cut short\"}='";
                execute(&clients, reset, ask, steps).await;
            }
            agent.contexts.remove_all().await;
        });
    }
}
