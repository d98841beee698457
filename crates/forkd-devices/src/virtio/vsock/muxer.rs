//! All clients of the host and their connections: who may come in, which packet belongs to whom, whose turn it is.
//!
//! ```text
//!  listener ──accept──▶ client ──CONNECT port──▶ connection ◀──packet of the guest, by its port on the host
//!                                                    │ has something for the guest
//!                                                    ▼
//!                                    the line: one packet each, then to the end of it
//! ```
//!
//! Everything here is bounded: clients, those of them that have not said what they want, bytes per connection, resets of
//! unknown connections.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};

use vm_memory::VolatileSlice;

use super::client::{Client, Output, Role};
use super::connection::{Connection, Stage};
use super::greeting::Greeting;
use super::packet::{HOST_CID, Header, Operation, TYPE_STREAM};

/// Clients at a time. More wait in the listener's queue.
pub(super) const MAX_CLIENTS: usize = 1024;

/// Clients that have not finished their first line. The oldest makes way for a new one: a client that says nothing shuts
/// no client out, and no clock is needed. A client whose request the guest has not answered is not put out: Linux answers at
/// once, and a guest that does not would not answer the next one either.
pub(super) const MAX_UNGREETED: usize = 128;

/// Resets that answer packets of no connection. A guest that sends such packets and takes no answers loses the rest.
const MAX_REFUSALS: usize = 128;

const ACCEPTS_PER_CALL: usize = 16;

/// The ports on the host's side, each used once before any is used again. They are also the tokens of the clients.
pub(super) const HOST_PORTS: Range<u32> = 1 << 30..1 << 31;

#[derive(Debug)]
pub(super) struct Muxer {
    guest_cid: u64,
    listener: UnixListener,
    clients: BTreeMap<u32, Client>,
    next_port: u32,
    /// Oldest first. Some of them may have got further or ended since.
    ungreeted: VecDeque<u32>,
    line: VecDeque<u32>,
    refusals: VecDeque<Header>,
    /// The last accept failed for want of something, most likely descriptors.
    accept_failed: bool,
}

impl Muxer {
    /// The listener must be non-blocking.
    pub fn new(guest_cid: u64, listener: UnixListener, next_port: u32) -> Muxer {
        Muxer {
            guest_cid,
            listener,
            clients: BTreeMap::new(),
            next_port,
            ungreeted: VecDeque::new(),
            line: VecDeque::new(),
            refusals: VecDeque::new(),
            accept_failed: false,
        }
    }

    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    pub fn next_port(&self) -> u32 {
        self.next_port
    }

    /// Whether a new client could come in now.
    pub fn has_room(&self) -> bool {
        let full = self.clients.len() >= MAX_CLIENTS;
        !self.accept_failed && (!full || self.clients.values().any(Client::is_expendable))
    }

    /// The sockets to wait for: token, socket, for reading, for writing.
    pub fn wishes(&self) -> impl Iterator<Item = (u32, &UnixStream, bool, bool)> {
        self.clients.iter().filter_map(|(&port, client)| {
            let (stream, readable, writable) = client.wish()?;
            Some((port, stream, readable, writable))
        })
    }

    /// Takes in the clients that wait at the listener.
    pub fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_CALL {
            if !self.has_room() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.enter(stream),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return,
                    io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {}
                    // The listener would report the same client again and again. It is asked again when there is a
                    // chance that things have changed.
                    _ => self.accept_failed = true,
                },
            }
        }
    }

    /// Something has happened in the guest or a client has ended: the listener is worth another try.
    pub fn retry_accept(&mut self) {
        self.accept_failed = false;
    }

    fn enter(&mut self, stream: UnixStream) {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        if self.clients.len() >= MAX_CLIENTS {
            self.evict_expendable();
        }
        let clients = &self.clients;
        self.ungreeted.retain(|port| clients.get(port).is_some_and(Client::is_ungreeted));
        if self.ungreeted.len() >= MAX_UNGREETED
            && let Some(port) = self.ungreeted.pop_front()
        {
            self.evict(port);
        }
        let port = self.allocate_port();
        self.ungreeted.push_back(port);
        self.clients.insert(port, Client::new(stream));
        self.client_ready(port);
    }

    fn allocate_port(&mut self) -> u32 {
        loop {
            let port = self.next_port;
            self.next_port = if port + 1 < HOST_PORTS.end { port + 1 } else { HOST_PORTS.start };
            if !self.clients.contains_key(&port) {
                return port;
            }
        }
    }

    fn evict_expendable(&mut self) {
        let found = self.clients.iter().find(|(_, client)| client.is_expendable());
        if let Some(port) = found.map(|(&port, _)| port) {
            self.evict(port);
        }
    }

    /// Ends a client at once. Its reset, if the guest needs one, leaves the table with it.
    fn evict(&mut self, port: u32) {
        let Some(mut client) = self.remove(port) else {
            return;
        };
        client.close();
        if let Some(connection) = client.connection() {
            connection.abort();
            if let Some(reset) = connection.next_packet() {
                self.push_refusal(reset);
            }
        }
    }

    /// The socket of a client is ready for something.
    pub fn client_ready(&mut self, port: u32) {
        let Some(client) = self.clients.get_mut(&port) else {
            return;
        };
        if let Role::Greeting(_) = client.role {
            match client.read_greeting() {
                Greeting::Incomplete => return,
                Greeting::Malformed => return self.evict(port),
                Greeting::Port(guest_port) => {
                    client.role = Role::Connected(Connection::new(self.guest_cid, guest_port, port));
                }
            }
        } else {
            client.serve();
            if client.connection().is_some_and(|connection| connection.room() > 0) {
                self.queue(port);
            }
        }
        self.settle(port);
    }

    /// Takes a packet of the guest. The payload is `None` if the packet has less of it than its header says, or too much.
    pub fn packet(&mut self, header: &Header, payload: Option<&[u8]>) {
        // A packet from before a restore, or with a forged address: an answer would reach no one.
        if header.source_cid != self.guest_cid {
            return;
        }
        let port = header.destination_port;
        let to_host = header.destination_cid == HOST_CID && header.kind == TYPE_STREAM;
        let client = self.clients.get_mut(&port).filter(|_| to_host);
        let connection = client.and_then(|client| {
            let guest_port = client.connection().map(|connection| connection.guest_port());
            (guest_port == Some(header.source_port)).then_some(client)
        });
        let Some(client) = connection else {
            return match header.operation {
                Operation::Request if to_host => self.guest_connects(header),
                _ => self.refuse(header),
            };
        };
        let Some(connection) = client.connection() else {
            return;
        };
        let before = connection.stage();
        match payload {
            Some(payload) => connection.packet(header, payload),
            None => connection.abort(),
        }
        if before == Stage::Requested && connection.stage() == Stage::Open && !client.greet(port) {
            client.connection().into_iter().for_each(Connection::abort);
        }
        client.flush();
        self.settle(port);
    }

    /// A program in the guest wants to connect to a port of the host. A VM process has no paths to offer, so there is
    /// nothing to connect to. A connector, handed in as a descriptor, would be asked here.
    fn guest_connects(&mut self, request: &Header) {
        self.refuse(request);
    }

    fn refuse(&mut self, header: &Header) {
        if header.operation != Operation::Reset {
            self.push_refusal(header.refusal());
        }
    }

    fn push_refusal(&mut self, reset: Header) {
        if self.refusals.len() < MAX_REFUSALS {
            self.refusals.push_back(reset);
        }
    }

    pub fn has_output(&self) -> bool {
        !self.refusals.is_empty() || !self.line.is_empty()
    }

    /// The next packet for the guest; its payload is in `space` already.
    pub fn output(&mut self, space: &VolatileSlice<'_>) -> Option<Header> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some(refusal);
        }
        while let Some(port) = self.line.pop_front() {
            let Some(client) = self.clients.get_mut(&port) else {
                continue;
            };
            client.queued = false;
            let output = client.output(space);
            if let Output::PacketOfMany(_) = output {
                self.queue(port);
            }
            self.settle(port);
            if let Output::Packet(packet) | Output::PacketOfMany(packet) = output {
                return Some(packet);
            }
        }
        None
    }

    /// Puts a client at the end of the line.
    fn queue(&mut self, port: u32) {
        if let Some(client) = self.clients.get_mut(&port)
            && !client.queued
        {
            client.queued = true;
            self.line.push_back(port);
        }
    }

    /// Draws the consequences of a change: closes, removes, or puts in line.
    fn settle(&mut self, port: u32) {
        let Some(client) = self.clients.get_mut(&port) else {
            return;
        };
        client.follow_guest();
        let Some(connection) = client.connection() else {
            return;
        };
        if connection.stage() == Stage::Done {
            self.remove(port);
        } else if connection.has_packet() {
            self.queue(port);
        }
    }

    /// Takes a client out of the table and out of the line, which would grow without bound if it kept the dead.
    fn remove(&mut self, port: u32) -> Option<Client> {
        let client = self.clients.remove(&port)?;
        if client.queued {
            self.line.retain(|&queued| queued != port);
        }
        self.retry_accept();
        Some(client)
    }

    /// Ends everything: there is no driver any more.
    pub fn reset(&mut self) {
        self.clients.values_mut().for_each(Client::close);
        self.clients.clear();
        self.ungreeted.clear();
        self.line.clear();
        self.refusals.clear();
    }

    #[cfg(test)]
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Bytes that the guest and the clients can make this hold.
    #[cfg(test)]
    pub fn memory(&mut self) -> usize {
        let buffers = self.clients.values_mut().filter_map(Client::connection);
        buffers.map(|connection| connection.buffer_capacity()).sum::<usize>()
            + self.refusals.capacity() * size_of::<Header>()
            + (self.line.capacity() + self.ungreeted.capacity()) * 4
    }
}
