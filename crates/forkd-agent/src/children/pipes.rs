//! The agent's ends of a child's streams.

use std::io;
use std::os::fd::OwnedFd;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use super::terminal::Terminal;

/// Where a child's output comes from.
#[derive(Debug)]
pub enum Output {
    Pipe(pipe::Receiver),
    Terminal(Terminal),
}

impl Output {
    /// Waits for output and takes up to `limit` bytes of it. Empty at the end.
    ///
    /// Memory is allocated when there is something to read, so a process that is silent costs none. It may be cancelled: what
    /// was not returned was not read.
    pub async fn read(&mut self, limit: usize) -> io::Result<Bytes> {
        match self {
            Self::Pipe(receiver) => loop {
                receiver.readable().await?;
                let mut buffer = BytesMut::with_capacity(limit);
                match receiver.try_read_buf(&mut buffer) {
                    Ok(_) => return Ok(buffer.freeze()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            },
            Self::Terminal(terminal) => terminal.read(limit).await,
        }
    }
}

/// Where a child's input goes.
#[derive(Debug)]
pub enum Input {
    Pipe(pipe::Sender),
    Terminal(Terminal),
}

impl Input {
    /// Waits until the child, or the kernel for it, has taken everything.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Pipe(sender) => sender.write_all(bytes).await,
            Self::Terminal(terminal) => terminal.write(bytes).await,
        }
    }
}

pub(super) fn output(descriptor: OwnedFd) -> io::Result<Output> {
    pipe::Receiver::from_owned_fd(descriptor).map(Output::Pipe)
}

pub(super) fn input(descriptor: OwnedFd) -> io::Result<Input> {
    pipe::Sender::from_owned_fd(descriptor).map(Input::Pipe)
}
