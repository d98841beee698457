//! A control socket that tokio waits for.
#![expect(unsafe_code, reason = "tokio asks its caller to promise that a descriptor stays open")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use forkd_proto::channel::{Channel, ChannelError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
pub struct AsyncChannel(AsyncFd<Socket>);

/// A channel in the form in which tokio takes descriptors.
#[derive(Debug)]
struct Socket(Channel);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl AsyncChannel {
    pub fn new(channel: Channel) -> io::Result<AsyncChannel> {
        rustix::io::ioctl_fionbio(&channel, true)?;
        // SAFETY: a channel owns its socket, which is open until it is dropped and always has the same number; the channel
        // moves into the result.
        let registered = unsafe { AsyncFd::register(Socket(channel)) };
        Ok(AsyncChannel(registered.map_err(|refused| refused.into_parts().1)?))
    }

    /// Sends one message, whole or not at all.
    pub async fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ChannelError> {
        self.0.async_io(Interest::WRITABLE, |socket| split(socket.0.send(message, descriptors))).await?
    }

    /// Waits for one message.
    pub async fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        self.0.async_io(Interest::READABLE, |socket| split(socket.0.receive())).await?
    }
}

/// Keeps the one error apart that tokio must see.
fn split<T>(result: Result<T, ChannelError>) -> io::Result<Result<T, ChannelError>> {
    match result {
        Err(ChannelError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        result => Ok(result),
    }
}

/// A process that tokio waits for, by a descriptor that came with a reply.
#[derive(Debug)]
pub struct AsyncPidfd(AsyncFd<Pidfd>);

#[derive(Debug)]
struct Pidfd(OwnedFd);

impl AsRawFd for Pidfd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsyncPidfd {
    pub fn new(pidfd: OwnedFd) -> io::Result<AsyncPidfd> {
        // SAFETY: the descriptor is owned, so it is open and keeps its number until it is dropped; it moves into the result.
        let registered = unsafe { AsyncFd::register_with_interest(Pidfd(pidfd), Interest::READABLE) };
        Ok(AsyncPidfd(registered.map_err(|refused| refused.into_parts().1)?))
    }

    /// Waits for the end of the process.
    pub async fn ended(&self) -> io::Result<()> {
        self.0.readable().await.map(|mut ready| ready.retain_ready())
    }

    pub fn kill(&self) -> io::Result<()> {
        let pidfd = self.0.get_ref().0.as_fd();
        Ok(rustix::process::pidfd_send_signal(pidfd, rustix::process::Signal::KILL)?)
    }
}
