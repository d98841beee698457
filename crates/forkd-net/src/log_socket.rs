//! A netlink socket that gets the packets which rules log in one namespace.
#![expect(unsafe_code, reason = "tokio asks its caller to promise that a descriptor stays open")]

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::netlink::{NetlinkSocket, write_message};
use crate::nft::Attributes;

/// A message of NFNL_SUBSYS_ULOG.
const CONFIGURE: u16 = 4 << 8 | 1;
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
/// NFULNL_COPY_PACKET.
const COPY_PACKET: u8 = 2;

/// Listens to a group, of whose packets so many bytes are wanted, in the calling thread's namespace.
pub fn listen(group: u16, bytes: u32) -> io::Result<OwnedFd> {
    let socket = NetlinkSocket::netfilter()?;
    let bind = Attributes::default().put(1, &[1]);
    let [a, b, c, d] = bytes.to_be_bytes();
    let copy = Attributes::default().put(2, &[a, b, c, d, COPY_PACKET, 0]);
    for attributes in [bind, copy] {
        let [high, low] = group.to_be_bytes();
        let mut message = Vec::new();
        let header = [0, 0, high, low];
        write_message(&mut message, CONFIGURE, REQUEST | ACKNOWLEDGE, 1, &[&header, attributes.bytes()]);
        socket.ask(&message, 1)?;
    }
    let socket = socket.into_inner();
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

#[derive(Debug)]
pub struct LogSocket(AsyncFd<Socket>);

#[derive(Debug)]
struct Socket(OwnedFd);

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl LogSocket {
    pub fn new(socket: OwnedFd) -> io::Result<LogSocket> {
        // SAFETY: the descriptor is owned, so it is open and keeps its number until it is dropped; it moves into the result.
        let registered = unsafe { AsyncFd::register_with_interest(Socket(socket), Interest::READABLE) };
        Ok(LogSocket(registered.map_err(|refused| refused.into_parts().1)?))
    }

    /// Waits for messages, and reads as many as the kernel hands out at once.
    pub async fn read(&self, piece: &mut [u8]) -> io::Result<usize> {
        let read = |socket: &Socket| Ok(rustix::net::recv(&socket.0, &mut *piece, RecvFlags::DONTWAIT)?.0);
        let mut read = read;
        self.0.async_io(Interest::READABLE, |socket| read(socket)).await
    }
}
