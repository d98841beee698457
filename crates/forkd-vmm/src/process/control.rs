//! The process's side of its control socket.
//!
//! One end of a pair lasts as long as the other end. A listening socket accepts one client after another; between two of
//! them, events wait for the next.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use forkd_proto::channel::{Channel, ChannelError};
use forkd_proto::control::{Event, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, SocketType, accept_with, sockopt};

use super::last_words;

/// Events that wait for a client. There are never many; the oldest go first.
const MAX_WAITING: usize = 64;

pub struct ControlSocket {
    listener: Option<OwnedFd>,
    channel: Option<Arc<Channel>>,
    waiting: VecDeque<Event>,
}

impl ControlSocket {
    /// Takes a socket that listens, or one that is connected.
    pub fn new(socket: OwnedFd) -> io::Result<ControlSocket> {
        let waiting = VecDeque::new();
        if sockopt::socket_type(&socket)? != SocketType::SEQPACKET {
            return Err(io::Error::other("a socket of another type"));
        }
        if !sockopt::socket_acceptconn(&socket)? {
            let mut control = ControlSocket { listener: None, channel: None, waiting };
            control.talk_to(Some(Channel::new(socket)));
            return Ok(control);
        }
        // A client that has gone again before it was taken must not be waited for.
        rustix::io::ioctl_fionbio(&socket, true)?;
        let mut control = ControlSocket { listener: Some(socket), channel: None, waiting };
        control.talk_to(None);
        Ok(control)
    }

    /// Has a client from now on, or none. Last words go to it too.
    fn talk_to(&mut self, client: Option<Channel>) {
        self.channel = client.map(Arc::new);
        last_words::adopt(self.channel.clone());
    }

    /// Becomes readable when there is something for [`ControlSocket::receive`].
    pub fn readable(&self) -> Option<BorrowedFd<'_>> {
        let channel = self.channel.as_ref().map(|channel| channel.as_fd());
        channel.or_else(|| self.listener.as_ref().map(AsFd::as_fd))
    }

    /// The socket that a successor takes over.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        let listener = self.listener.as_ref().map(AsFd::as_fd);
        listener.or_else(|| self.channel.as_ref().map(|channel| channel.as_fd()))
    }

    /// Takes the next message. Returns `None` if a client has only come or gone.
    pub fn receive(&mut self) -> Result<Option<(serde_json::Value, Vec<OwnedFd>)>, ChannelError> {
        let Some(channel) = &self.channel else {
            return self.accept().map(|()| None);
        };
        match channel.receive() {
            Ok(message) => Ok(Some(message)),
            Err(ChannelError::Closed) if self.listener.is_some() => {
                self.talk_to(None);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn accept(&mut self) -> Result<(), ChannelError> {
        let Some(listener) = &self.listener else { return Err(ChannelError::Closed) };
        match accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(client) => self.talk_to(Some(Channel::new(client))),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        while self.channel.is_some()
            && let Some(event) = self.waiting.pop_front()
        {
            self.say(event);
        }
        Ok(())
    }

    /// Answers. If the client is gone, the next receive finds out.
    pub fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) {
        if let Some(channel) = &self.channel {
            let _ = channel.send(message, descriptors);
        }
    }

    /// Sends an event; without a client, to the next one.
    pub fn say(&mut self, event: Event) {
        let message = Message::Event(event);
        let sent = self.channel.as_ref().is_some_and(|channel| channel.send(&message, &[]).is_ok());
        if !sent
            && self.listener.is_some()
            && let Message::Event(event) = message
        {
            self.talk_to(None);
            if self.waiting.len() >= MAX_WAITING {
                self.waiting.pop_front();
            }
            self.waiting.push_back(event);
        }
    }

    /// Whether no client will ever read what is sent.
    pub fn is_abandoned(&self) -> bool {
        let (None, Some(channel)) = (&self.listener, &self.channel) else { return false };
        let mut events = [PollFd::new(&**channel, PollFlags::empty())];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut events, Some(&at_once)), Ok(1..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, bind, connect, listen, socket};

    #[test]
    fn an_end_of_a_pair_ends_with_the_other() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut control = ControlSocket::new(theirs.into_inner()).unwrap();
        assert!(!control.is_abandoned());
        ours.send(&"hello", &[]).unwrap();
        assert_eq!(control.receive().unwrap().unwrap().0, "hello");
        drop(ours);
        assert!(control.is_abandoned());
        assert!(matches!(control.receive(), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_listening_socket_outlives_its_clients_and_keeps_events_for_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let address = SocketAddrUnix::new(directory.path().join("control")).unwrap();
        let new = || socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let listener = new();
        bind(&listener, &address).unwrap();
        listen(&listener, 4).unwrap();
        let mut control = ControlSocket::new(listener).unwrap();
        assert!(control.receive().unwrap().is_none());
        control.say(Event::Running);
        for round in 0..2 {
            let client = new();
            connect(&client, &address).unwrap();
            let client = Channel::new(client);
            assert!(control.receive().unwrap().is_none());
            if round == 0 {
                assert_eq!(client.receive::<Message>().unwrap().0, Message::Event(Event::Running));
            }
            client.send(&round, &[]).unwrap();
            assert_eq!(control.receive().unwrap().unwrap().0, round);
            drop(client);
            assert!(control.receive().unwrap().is_none());
            assert!(!control.is_abandoned());
        }
    }
}
