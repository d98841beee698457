//! One stream between a client on the host and a port in the guest: packets in, packets and bytes out, no input or output
//! of its own.
//!
//! ```text
//!             RESPONSE            SHUTDOWN of both directions, or RST
//! Requested ───────────▶ Open ─────────────────────────────────────────▶ Draining ── client has read all ──▶ Done
//!     │ RST               │ client gone: SHUTDOWN                                                           ▲
//!     │                   ▼                                                                                 │
//!     │                Closing ── SHUTDOWN of both directions, or RST ──────────────────────────────────────┤
//!     └─────────────────────────────────────────────────────────────────────────────────────────────────────┤
//!   a broken rule in any state, or eviction ──▶ Resetting ── RST sent ──────────────────────────────────────┘
//! ```
//!
//! Bytes from the guest wait in a buffer of a fixed size, which the guest has been told; more than fits is a broken rule.
//! Bytes to the guest are never buffered: they stay in the client's socket until the guest has credit for them.

use std::collections::VecDeque;

use super::packet::{
    HOST_CID, Header, Operation, SHUTDOWN_BOTH, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM,
};

/// What the guest may send before the client has read any of it.
pub(super) const BUFFER: u32 = 256 << 10;

/// The guest's buffer counts up to here, so that counters modulo 2^32 have an order.
const MAX_WINDOW: u32 = 1 << 30;

/// A buffer that has grown beyond this is freed when it is empty.
const KEPT_CAPACITY: usize = 16 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Requested,
    Open,
    /// The client is gone, the guest has been told and is expected to close.
    Closing,
    /// The guest is gone; the client has not read everything yet.
    Draining,
    /// Only the reset is left to send.
    Resetting,
    Done,
}

/// Packets that wait for a buffer of the guest. Flags, not a queue: two of the same are as good as one.
#[derive(Debug, Default)]
struct Pending {
    request: bool,
    reset: bool,
    credit_update: bool,
    credit_request: bool,
    shutdown: u32,
}

#[derive(Debug)]
pub(super) struct Connection {
    guest_cid: u64,
    guest_port: u32,
    host_port: u32,
    stage: Stage,
    pending: Pending,
    /// The directions that each side has shut down, as flags of SHUTDOWN.
    guest_shutdown: u32,
    host_shutdown: u32,

    /// From the guest, for the client.
    buffer: VecDeque<u8>,
    forwarded: u32,
    /// The count of forwarded bytes that the guest knows.
    told: u32,

    /// To the guest, so far.
    sent: u32,
    guest_buffer: u32,
    guest_forwarded: u32,
}

impl Connection {
    /// A connection that is about to ask the guest.
    pub fn new(guest_cid: u64, guest_port: u32, host_port: u32) -> Connection {
        Connection {
            guest_cid,
            guest_port,
            host_port,
            stage: Stage::Requested,
            pending: Pending { request: true, ..Pending::default() },
            guest_shutdown: 0,
            host_shutdown: 0,
            buffer: VecDeque::new(),
            forwarded: 0,
            told: 0,
            sent: 0,
            guest_buffer: 0,
            guest_forwarded: 0,
        }
    }

    pub fn guest_port(&self) -> u32 {
        self.guest_port
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Takes a packet of the guest for this connection.
    pub fn packet(&mut self, header: &Header, payload: &[u8]) {
        if header.operation == Operation::Reset {
            self.guest_gone();
            return;
        }
        match self.stage {
            Stage::Done | Stage::Resetting => return,
            // The guest has said that it is done, and talks on: tell it again.
            Stage::Draining => {
                self.pending.reset = true;
                return;
            }
            Stage::Requested | Stage::Open | Stage::Closing => {}
        }
        if !self.credit_from(header) {
            return self.abort();
        }
        match (self.stage, header.operation) {
            (Stage::Requested, Operation::Response) if !self.pending.request => {
                self.stage = Stage::Open;
                self.pending.credit_request = self.credit() == 0;
            }
            // The guest may know the connection before its answer has arrived here.
            (_, Operation::CreditUpdate) => {}
            (Stage::Open | Stage::Closing, Operation::CreditRequest) => self.pending.credit_update = true,
            (Stage::Open | Stage::Closing, Operation::Data) => self.data(payload),
            (Stage::Open | Stage::Closing, Operation::Shutdown) => self.shutdown(header.flags),
            _ => self.abort(),
        }
    }

    /// Takes over the guest's account of its buffer. False if it claims bytes that were never sent.
    fn credit_from(&mut self, header: &Header) -> bool {
        self.guest_buffer = header.buffer_size.min(MAX_WINDOW);
        let outstanding = self.sent.wrapping_sub(header.forwarded);
        if outstanding > 2 * MAX_WINDOW {
            return false;
        }
        // Linux fills in the count before it queues a packet, so a packet with an older count may come after a newer one.
        if outstanding < self.outstanding() {
            self.guest_forwarded = header.forwarded;
        }
        true
    }

    fn outstanding(&self) -> u32 {
        self.sent.wrapping_sub(self.guest_forwarded)
    }

    fn credit(&self) -> u32 {
        self.guest_buffer.saturating_sub(self.outstanding())
    }

    fn data(&mut self, payload: &[u8]) {
        let buffered = self.buffer.len() + payload.len();
        if buffered > BUFFER as usize || self.guest_shutdown & SHUTDOWN_SEND != 0 {
            return self.abort();
        }
        if self.host_shutdown & SHUTDOWN_RECEIVE != 0 {
            // It is not read. It was sent before the guest heard of that.
            return self.count_forwarded(payload.len());
        }
        self.buffer.extend(payload);
    }

    fn shutdown(&mut self, flags: u32) {
        self.guest_shutdown |= flags & SHUTDOWN_BOTH;
        if self.guest_shutdown == SHUTDOWN_BOTH {
            // Linux keeps its socket for some seconds until this arrives.
            self.pending = Pending { reset: true, ..Pending::default() };
            self.stage = match self.stage {
                Stage::Closing => Stage::Resetting,
                _ => Stage::Draining,
            };
        }
    }

    fn guest_gone(&mut self) {
        self.pending = Pending::default();
        self.stage = match self.stage {
            // What the guest wrote before it went is still the client's to read.
            Stage::Open | Stage::Draining if !self.buffer.is_empty() => Stage::Draining,
            _ => Stage::Done,
        };
    }

    /// Ends the connection with a reset, whatever is left of it.
    pub fn abort(&mut self) {
        let unheard = self.pending.request;
        self.buffer = VecDeque::new();
        self.pending = Pending::default();
        self.stage = match self.stage {
            Stage::Done => Stage::Done,
            // The guest has not heard of it.
            Stage::Requested if unheard => Stage::Done,
            _ => {
                self.pending.reset = true;
                Stage::Resetting
            }
        };
    }

    /// The client will send no more. Everything that it has sent is with the guest.
    pub fn client_sends_no_more(&mut self) {
        self.client_shutdown(SHUTDOWN_SEND);
    }

    /// The client will read no more; its pending data is dropped.
    pub fn client_reads_no_more(&mut self) {
        let unread = self.buffer.len();
        self.buffer = VecDeque::new();
        self.count_forwarded(unread);
        if self.stage == Stage::Draining {
            self.stage = match self.pending.reset {
                true => Stage::Resetting,
                false => Stage::Done,
            };
        }
        self.client_shutdown(SHUTDOWN_RECEIVE);
    }

    fn client_shutdown(&mut self, direction: u32) {
        match self.stage {
            Stage::Requested => self.abort(),
            Stage::Open if self.host_shutdown & direction == 0 => {
                self.host_shutdown |= direction;
                self.pending.shutdown = self.host_shutdown;
                if self.host_shutdown == SHUTDOWN_BOTH {
                    self.stage = Stage::Closing;
                }
            }
            Stage::Open | Stage::Closing | Stage::Draining | Stage::Resetting | Stage::Done => {}
        }
    }

    /// What the client can read now.
    pub fn unread(&self) -> &[u8] {
        let (front, back) = self.buffer.as_slices();
        if front.is_empty() { back } else { front }
    }

    /// So much of it was written to the client's socket.
    pub fn client_took(&mut self, count: usize) {
        let count = count.min(self.buffer.len());
        self.buffer.drain(..count);
        if self.buffer.is_empty() && self.buffer.capacity() > KEPT_CAPACITY {
            self.buffer = VecDeque::new();
        }
        self.count_forwarded(count);
        if self.buffer.is_empty() && self.stage == Stage::Draining && !self.pending.reset {
            self.stage = Stage::Done;
        }
    }

    fn count_forwarded(&mut self, count: usize) {
        // The buffer is smaller than 2^32.
        self.forwarded = self.forwarded.wrapping_add(u32::try_from(count).unwrap_or(0));
        let received = self.forwarded.wrapping_add(u32::try_from(self.buffer.len()).unwrap_or(0));
        let known_room = BUFFER.saturating_sub(received.wrapping_sub(self.told));
        let talks = matches!(self.stage, Stage::Open) && self.guest_shutdown & SHUTDOWN_SEND == 0;
        if talks && known_room < BUFFER / 2 && self.told != self.forwarded {
            self.pending.credit_update = true;
        }
    }

    /// The guest will write no more and the client has read all: its socket can say so.
    pub fn client_at_end(&self) -> bool {
        self.buffer.is_empty() && self.guest_shutdown & SHUTDOWN_SEND != 0
    }

    /// The guest reads no more: what the client sends goes nowhere.
    pub fn guest_reads_no_more(&self) -> bool {
        self.guest_shutdown & SHUTDOWN_RECEIVE != 0
    }

    /// How much of the client's bytes the guest can take now.
    pub fn room(&self) -> u32 {
        let reads = self.guest_shutdown & SHUTDOWN_RECEIVE == 0 && self.host_shutdown & SHUTDOWN_SEND == 0;
        if self.stage == Stage::Open && reads { self.credit() } else { 0 }
    }

    pub fn has_packet(&self) -> bool {
        let pending = &self.pending;
        pending.request
            || pending.reset
            || pending.credit_update
            || pending.credit_request
            || pending.shutdown != 0
    }

    /// The next packet without payload for the guest. It counts as sent.
    pub fn next_packet(&mut self) -> Option<Header> {
        let take = std::mem::take::<bool>;
        let (operation, flags) = if take(&mut self.pending.reset) {
            self.pending = Pending::default();
            if self.stage == Stage::Resetting || self.buffer.is_empty() {
                self.stage = Stage::Done;
            }
            (Operation::Reset, 0)
        } else if take(&mut self.pending.request) {
            (Operation::Request, 0)
        } else if take(&mut self.pending.credit_update) {
            (Operation::CreditUpdate, 0)
        } else if take(&mut self.pending.credit_request) {
            (Operation::CreditRequest, 0)
        } else if self.pending.shutdown != 0 {
            (Operation::Shutdown, std::mem::take(&mut self.pending.shutdown))
        } else {
            return None;
        };
        Some(self.header(operation, flags, 0))
    }

    /// The header for so many bytes of the client, no more than there is room for. They count as sent.
    pub fn data_packet(&mut self, length: u32) -> Header {
        self.sent = self.sent.wrapping_add(length);
        if self.credit() == 0 {
            self.pending.credit_request = true;
        }
        self.header(Operation::Data, 0, length)
    }

    fn header(&mut self, operation: Operation, flags: u32, length: u32) -> Header {
        // Every packet tells the guest the count, so an update of its own is no longer needed.
        self.told = self.forwarded;
        self.pending.credit_update = false;
        Header {
            source_cid: HOST_CID,
            destination_cid: self.guest_cid,
            source_port: self.host_port,
            destination_port: self.guest_port,
            length,
            kind: TYPE_STREAM,
            operation,
            flags,
            buffer_size: BUFFER,
            forwarded: self.forwarded,
        }
    }

    #[cfg(test)]
    pub fn buffer_capacity(&self) -> usize {
        self.buffer.capacity()
    }
}

#[cfg(test)]
#[path = "connection_tests.rs"]
mod tests;
