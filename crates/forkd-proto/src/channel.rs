//! A socket of whole messages with descriptors: JSON over SEQPACKET, descriptors by SCM_RIGHTS.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// No message is longer.
pub const MAX_MESSAGE: usize = 64 << 10;

/// No message has more descriptors: the kernel takes no more.
pub const MAX_DESCRIPTORS: usize = 253;

#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    #[error("the peer has closed the control socket")]
    Closed,
    #[error("the control socket failed")]
    Io(#[from] io::Error),
    #[error("a message longer than {MAX_MESSAGE} bytes or with more than {MAX_DESCRIPTORS} descriptors")]
    TooLarge,
    #[error("not a message: {0}")]
    Malformed(String),
    /// The message itself is whole.
    #[error("the descriptors of a message did not all arrive: this process may have no more open")]
    DescriptorsLost { message: serde_json::Value },
}

impl From<rustix::io::Errno> for ChannelError {
    fn from(errno: rustix::io::Errno) -> ChannelError {
        match errno {
            rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => ChannelError::Closed,
            errno => ChannelError::Io(errno.into()),
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Both ends of a new connection.
    pub fn pair() -> Result<(Channel, Channel), ChannelError> {
        let flags = SocketFlags::CLOEXEC;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Channel::new(one), Channel::new(other)))
    }

    /// An end that was handed over.
    pub fn new(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    pub fn into_inner(self) -> OwnedFd {
        self.socket
    }

    /// Sends one message, whole or not at all.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        self.send_with(message, descriptors, SendFlags::empty())
    }

    /// Sends one message, or fails if it would have to wait for the other end to read.
    pub fn send_at_once(&self, message: &impl Serialize) -> Result<(), ChannelError> {
        self.send_with(message, &[], SendFlags::DONTWAIT)
    }

    fn send_with(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> Result<(), ChannelError> {
        crate::passes!();
        let text = serde_json::to_vec(message).map_err(|error| ChannelError::Malformed(error.to_string()))?;
        if text.len() > MAX_MESSAGE || descriptors.len() > MAX_DESCRIPTORS {
            return Err(ChannelError::TooLarge);
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(ChannelError::TooLarge);
        }
        let data = [IoSlice::new(&text)];
        rustix::io::retry_on_intr(|| {
            rustix::net::sendmsg(&self.socket, &data, &mut ancillary, SendFlags::NOSIGNAL | flags)
        })?;
        Ok(())
    }

    /// Waits for one message and returns it with its descriptors.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<(T, Vec<OwnedFd>), ChannelError> {
        let mut text = vec![0; self.next_length()?.min(MAX_MESSAGE)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            let mut data = [IoSliceMut::new(&mut text)];
            rustix::net::recvmsg(&self.socket, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        })?;
        // Taken out in every case: what is not taken would stay open.
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::TRUNC) {
            return Err(ChannelError::TooLarge);
        }
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        // There is space for as many as the kernel passes on, so it is the process that had none.
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let message = serde_json::from_slice(&text[..received.bytes]).unwrap_or_default();
            return Err(ChannelError::DescriptorsLost { message });
        }
        let message = serde_json::from_slice(&text[..received.bytes]);
        Ok((message.map_err(|error| ChannelError::Malformed(error.to_string()))?, descriptors))
    }

    /// Waits for one message and says how long it is. It is asked for, since room for the longest would be 64 KiB of zeroes a message:
    /// in a zygote, 16 pages that the last child shares and that are copied for the next.
    fn next_length(&self) -> Result<usize, ChannelError> {
        let look = RecvFlags::PEEK | RecvFlags::TRUNC;
        let mut nothing: [u8; 0] = [];
        let (_, length) =
            rustix::io::retry_on_intr(|| rustix::net::recv(&self.socket, &mut nothing[..], look))?;
        Ok(length)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn messages_and_descriptors_arrive_together() {
        let (one, other) = Channel::pair().unwrap();
        let file = File::open("/proc/self/comm").unwrap();
        one.send(&vec![1, 2, 3], &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(&"second", &[]).unwrap();
        let (message, descriptors) = other.receive::<Vec<u32>>().unwrap();
        assert_eq!(message, [1, 2, 3]);
        assert_eq!(descriptors.len(), 2);
        let mut text = String::new();
        File::from(descriptors.into_iter().next().unwrap()).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        assert_eq!(other.receive::<String>().unwrap().0, "second");
    }

    #[test]
    fn a_full_socket_does_not_hold_up_what_is_sent_at_once() {
        let (one, other) = Channel::pair().unwrap();
        let mut sent = 0;
        while one.send_at_once(&sent).is_ok() {
            sent += 1;
        }
        assert!(sent > 0);
        for expected in 0..sent {
            assert_eq!(other.receive::<u32>().unwrap().0, expected);
        }
        one.send_at_once(&sent).unwrap();
    }

    #[test]
    fn bad_messages_are_refused_and_the_next_one_is_read() {
        let (one, other) = Channel::pair().unwrap();
        one.send(&"text", &[]).unwrap();
        assert!(matches!(other.receive::<u32>(), Err(ChannelError::Malformed(_))));
        let long = vec![b'"'; MAX_MESSAGE + 1];
        rustix::io::write(one.as_fd(), &long).unwrap();
        assert!(matches!(other.receive::<String>(), Err(ChannelError::TooLarge)));
        assert!(matches!(one.send(&"x".repeat(MAX_MESSAGE), &[]), Err(ChannelError::TooLarge)));
        one.send(&5u32, &[]).unwrap();
        assert_eq!(other.receive::<u32>().unwrap().0, 5);
        drop(one);
        assert!(matches!(other.receive::<u32>(), Err(ChannelError::Closed)));
        assert!(matches!(other.send(&1, &[]), Err(ChannelError::Closed)));
    }
}
