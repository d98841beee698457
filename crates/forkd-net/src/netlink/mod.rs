//! Netlink: a socket that asks the kernel and waits for its answer.
//!
//! A socket belongs to the namespace that it was made in, wherever it is used afterwards. All of it blocks, for as long as the
//! kernel takes to change a table.

pub mod route;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt::Timeout;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Answers to a dump come in pieces of at most this.
const PIECE: usize = 64 << 10;
const SEND_BUFFER: usize = 8 << 20;
const HEADER: usize = 16;
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// More messages than any answer of ours has: a dump of all links of a full host is below it.
const MAX_MESSAGES: usize = 1 << 20;

/// The kernel answers at once, or never.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct NetlinkSocket(OwnedFd);

/// A message that the kernel has refused.
#[derive(Debug)]
pub struct Refusal {
    /// The message's own number; 0 if it was none in particular.
    pub sequence: u32,
    pub source: io::Error,
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> io::Error {
        refusal.source
    }
}

impl From<io::Error> for Refusal {
    fn from(source: io::Error) -> Refusal {
        Refusal { sequence: 0, source }
    }
}

impl From<rustix::io::Errno> for Refusal {
    fn from(error: rustix::io::Errno) -> Refusal {
        io::Error::from(error).into()
    }
}

/// One message of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub kind: u16,
    pub sequence: u32,
    pub payload: Vec<u8>,
}

impl NetlinkSocket {
    /// To rtnetlink.
    pub fn route() -> io::Result<NetlinkSocket> {
        // NETLINK_ROUTE is number 0, which is no protocol to rustix.
        NetlinkSocket::open(None)
    }

    /// To netfilter.
    pub fn netfilter() -> io::Result<NetlinkSocket> {
        NetlinkSocket::open(Some(netlink::NETFILTER))
    }

    fn open(protocol: Option<Protocol>) -> io::Result<NetlinkSocket> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        // A transaction is one message to the kernel. A user who may not exceed the host's limit may not make rules either.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER);
        rustix::net::sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(NetlinkSocket(socket))
    }

    pub fn into_inner(self) -> OwnedFd {
        self.0
    }

    /// Sends messages and reads answers until `expected` of them are acknowledged or the first is refused.
    ///
    /// The next call drops the rest in the socket after a refusal.
    pub fn ask(&self, messages: &[u8], expected: usize) -> Result<Vec<Answer>, Refusal> {
        self.discard()?;
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        rustix::net::sendto(&self.0, messages, SendFlags::empty(), &kernel)?;
        let mut answers = Vec::new();
        let mut acknowledged = 0;
        let mut piece = vec![0; PIECE];
        while acknowledged < expected {
            let (length, _) = rustix::net::recv(&self.0, &mut piece[..], RecvFlags::empty())?;
            for answer in split(piece.get(..length).unwrap_or_default())? {
                match answer.kind {
                    // An error without a code is the acknowledgement.
                    ERROR => match code(&answer.payload)? {
                        0 => acknowledged += 1,
                        code => {
                            let source = io::Error::from_raw_os_error(code.saturating_neg());
                            return Err(Refusal { sequence: answer.sequence, source });
                        }
                    },
                    DONE => acknowledged += 1,
                    _ if answers.len() == MAX_MESSAGES => {
                        return Err(io::Error::from(io::ErrorKind::InvalidData).into());
                    }
                    _ => answers.push(answer),
                }
            }
        }
        Ok(answers)
    }

    fn discard(&self) -> io::Result<()> {
        let mut piece = [0; 16];
        loop {
            match rustix::net::recv(&self.0, &mut piece[..], RecvFlags::DONTWAIT) {
                Ok(_) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Appends a message: header, and the parts of its payload.
pub fn write_message(to: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, payload: &[&[u8]]) {
    let length = HEADER + payload.iter().map(|part| part.len()).sum::<usize>();
    to.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(&flags.to_ne_bytes());
    to.extend_from_slice(&sequence.to_ne_bytes());
    to.extend_from_slice(&[0; 4]);
    for part in payload {
        to.extend_from_slice(part);
    }
    to.resize(to.len().next_multiple_of(4), 0);
}

fn code(payload: &[u8]) -> io::Result<i32> {
    let bytes = payload.first_chunk::<4>().ok_or(io::ErrorKind::InvalidData)?;
    Ok(i32::from_ne_bytes(*bytes))
}

/// The messages of one piece: each has its length, its kind, and is padded to four bytes.
pub fn split(mut piece: &[u8]) -> io::Result<Vec<Answer>> {
    let mut answers = Vec::new();
    while piece.len() >= HEADER {
        let length = piece.first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let message = piece.get(..length).filter(|message| message.len() >= HEADER);
        let message = message.ok_or(io::ErrorKind::InvalidData)?;
        let kind = u16::from_ne_bytes([message[4], message[5]]);
        let sequence = u32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
        answers.push(Answer { kind, sequence, payload: message[HEADER..].to_vec() });
        piece = piece.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_answer_is_too_odd(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(answers) = split(&bytes) {
                let total: usize = answers.iter().map(|answer| answer.payload.len() + HEADER).sum();
                prop_assert!(total <= bytes.len());
            }
        }
    }

    #[test]
    fn the_kernel_lists_its_links() {
        let links = route::Links::open().unwrap();
        assert!(links.list().unwrap().iter().any(|(_, name)| name == "lo"));
        assert!(links.index("forkd-none").unwrap().is_none());
    }
}
