//! A client on the host: its socket, and what has become of it.
//!
//! Nothing here shuts a socket down on drop. After a fork both sides hold the same sockets, and the copy that drops its own
//! must not end the connections of the source.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use vm_memory::{ReadVolatile, VolatileMemoryError, VolatileSlice};

use super::connection::{Connection, Stage};
use super::greeting::{Greeting, GreetingLine, MAX_LINE};
use super::packet::{Header, MAX_PAYLOAD};

#[derive(Debug)]
pub(super) enum Role {
    /// The client has not said yet what it wants.
    Greeting(GreetingLine),
    Connected(Connection),
}

#[derive(Debug)]
pub(super) struct Client {
    /// None once the connection has no use for it.
    stream: Option<UnixStream>,
    pub role: Role,
    /// It stands in the line of those that have something for the guest.
    pub queued: bool,
    /// The other end is closed. There may be bytes to read still.
    hung_up: bool,
    reading_shut: bool,
    writing_shut: bool,
}

/// What a client has for the guest.
pub(super) enum Output {
    Packet(Header),
    /// A packet, and most likely more.
    PacketOfMany(Header),
    Nothing,
}

impl Client {
    /// The stream must be non-blocking.
    pub fn new(stream: UnixStream) -> Client {
        Client {
            stream: Some(stream),
            role: Role::Greeting(GreetingLine::default()),
            queued: false,
            hung_up: false,
            reading_shut: false,
            writing_shut: false,
        }
    }

    pub fn connection(&mut self) -> Option<&mut Connection> {
        match &mut self.role {
            Role::Connected(connection) => Some(connection),
            Role::Greeting(_) => None,
        }
    }

    /// It has not finished its first line.
    pub fn is_ungreeted(&self) -> bool {
        matches!(self.role, Role::Greeting(_))
    }

    /// Only the guest keeps it from ending.
    pub fn is_expendable(&self) -> bool {
        self.stream.is_none() || self.hung_up
    }

    /// The socket to wait for, and whether for reading and writing. Neither means: only for its end, which is always
    /// reported.
    pub fn wish(&self) -> Option<(&UnixStream, bool, bool)> {
        let stream = self.stream.as_ref()?;
        let connection = match &self.role {
            Role::Greeting(_) => return Some((stream, true, false)),
            Role::Connected(connection) => connection,
        };
        let readable = connection.room() > 0 && !self.queued;
        let writable = !connection.unread().is_empty();
        // One that stands in line with bytes waits for the guest: its end would be reported without pause.
        let end = !(self.hung_up || self.queued && connection.room() > 0);
        (readable || writable || end).then_some((stream, readable, writable))
    }

    /// Reads on in the first line.
    pub fn read_greeting(&mut self) -> Greeting {
        let (Some(stream), Role::Greeting(line)) = (&self.stream, &mut self.role) else {
            return Greeting::Malformed;
        };
        // What follows the line belongs to the guest. Looking first leaves it in the socket, so no one has to keep it.
        let mut bytes = [0; MAX_LINE];
        let flags = RecvFlags::DONTWAIT;
        let count = match rustix::net::recv(stream, &mut bytes, flags | RecvFlags::PEEK) {
            Ok((count, _)) if count > 0 => count,
            Err(Errno::AGAIN | Errno::INTR) => return Greeting::Incomplete,
            Ok(_) | Err(_) => return Greeting::Malformed,
        };
        let (taken, greeting) = line.take(&bytes[..count]);
        match rustix::net::recv(stream, &mut bytes[..taken], flags) {
            Ok(_) => greeting,
            Err(_) => Greeting::Malformed,
        }
    }

    /// Tells the client that the guest has accepted. False if it did not take it: a new socket has room for a line.
    pub fn greet(&self, host_port: u32) -> bool {
        let line = format!("OK {host_port}\n");
        self.send(line.as_bytes()) == Ok(line.len())
    }

    /// The socket is ready for something: writes, and finds out about its end. What there is to read waits for a packet.
    pub fn serve(&mut self) {
        self.flush();
        let Role::Connected(connection) = &mut self.role else {
            return;
        };
        if connection.room() == 0 && self.stream.is_some() {
            self.find_end();
        }
    }

    /// Writes what the guest has sent.
    pub fn flush(&mut self) {
        while let Role::Connected(connection) = &mut self.role {
            let Some(stream) = &self.stream else { return };
            let unread = connection.unread();
            if unread.is_empty() {
                return;
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(stream, unread, flags) {
                Ok(count) => connection.client_took(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => return connection.client_reads_no_more(),
            }
        }
    }

    /// A packet without payload, or one with the client's bytes, which go straight into the guest's buffer.
    pub fn output(&mut self, space: &VolatileSlice<'_>) -> Output {
        let Role::Connected(connection) = &mut self.role else {
            return Output::Nothing;
        };
        if let Some(packet) = connection.next_packet() {
            return Output::PacketOfMany(packet);
        }
        let limit = connection.room().min(MAX_PAYLOAD) as usize;
        let Ok(mut space) = space.subslice(0, limit.min(space.len())) else {
            return Output::Nothing;
        };
        let Some(stream) = &mut self.stream else {
            return Output::Nothing;
        };
        if space.is_empty() {
            return Output::Nothing;
        }
        match stream.read_volatile(&mut space) {
            Ok(0) => {
                connection.client_sends_no_more();
                self.find_end();
            }
            Ok(count) => {
                // The limit is the largest payload.
                let packet = connection.data_packet(u32::try_from(count).unwrap_or(0));
                return if count == space.len() {
                    Output::PacketOfMany(packet)
                } else {
                    Output::Packet(packet)
                };
            }
            Err(VolatileMemoryError::IOError(error)) if is_transient(&error) => return Output::Nothing,
            Err(_) => {
                connection.client_sends_no_more();
                connection.client_reads_no_more();
                self.hung_up = true;
            }
        }
        match self.connection().and_then(Connection::next_packet) {
            Some(packet) => Output::PacketOfMany(packet),
            None => Output::Nothing,
        }
    }

    /// Finds out whether the client still reads. Nothing is sent, but to a closed socket even that is an error.
    fn find_end(&mut self) {
        if self.send(&[]) == Err(Errno::PIPE) {
            self.hung_up = true;
            if let Role::Connected(connection) = &mut self.role {
                connection.client_reads_no_more();
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let stream = self.stream.as_ref().ok_or(Errno::PIPE)?;
        rustix::net::send(stream, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    /// Shuts the socket in the directions that the guest has shut, and closes it when the connection is over for the
    /// client.
    pub fn follow_guest(&mut self) {
        let Role::Connected(connection) = &self.role else {
            return;
        };
        if matches!(connection.stage(), Stage::Closing | Stage::Resetting | Stage::Done) {
            return self.close();
        }
        let Some(stream) = &self.stream else { return };
        // An error here means that the other end is closed already.
        if connection.client_at_end() && !self.writing_shut {
            self.writing_shut = true;
            let _ = stream.shutdown(Shutdown::Write);
        }
        if connection.guest_reads_no_more() && !self.reading_shut {
            self.reading_shut = true;
            let _ = stream.shutdown(Shutdown::Read);
        }
    }

    /// Ends the client's connection, also where a forked process still holds its socket.
    pub fn close(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn is_transient(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock)
}
