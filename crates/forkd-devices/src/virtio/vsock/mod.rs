//! The vsock device: streams between clients of a Unix socket on the host and ports in the guest.
//!
//! A client connects to the socket, writes `CONNECT <port>\n`, and reads `OK <port of the host's side>\n` when a program in
//! the guest has accepted; from then on the bytes are theirs. If none accepts, the socket is closed. A program in the guest
//! that connects to the host is refused.
//!
//! ```text
//!  clients ── muxer ── connection, connection, …       packets, credit, states: no queues
//!               │
//!             device ── receive, transmit, event       the driver's queues
//! ```
//!
//! A save keeps no connections, and does not touch them: the source of a branch keeps all of them. A forked process
//! drops its copy of the source's device and must not reset it, because they share the sockets.
//!
//! The device that is made from a save tells its guest by a transport reset, upon which Linux closes its connected sockets
//! and keeps its listeners. Until the guest has handled it, no client comes in: Linux would reset the new connection with
//! the old ones. Nor are packets of the old connections answered with RST: a socket that gets one looks as if its client had
//! closed it, and the guest's agent tells the two apart (a client that left, and a guest that was forked).
//!
//! ```text
//!  restored ──▶ Due ── a buffer of the event queue is used ──▶ Sent ── the driver offers it again ──▶ None
//! ```

mod client;
mod connection;
mod greeting;
mod muxer;
mod packet;
mod state;
#[cfg(test)]
mod tests;

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use virtio_queue::desc::split::Descriptor;
use virtio_vsock::packet::{PKT_HEADER_SIZE, VsockPacket};
use vm_memory::{Bytes, GuestMemoryMmap};

use super::ring::Ring;
use super::{Driver, DriverFault, HostEvent, VirtioDevice};
use muxer::{HOST_PORTS, Muxer};
use packet::{Header, MAX_PAYLOAD, Operation};
pub use state::{GuestCid, VsockError, VsockState};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const EVENT: usize = 2;
const QUEUE_SIZES: [u16; 3] = [128, 128, 16];

/// So many packets in each direction, then the other devices have their turn.
const PACKETS_PER_CALL: usize = 64;

const EVENT_TRANSPORT_RESET: u32 = 0;

/// The token of the listener; those of the clients are their ports.
const LISTENER: u32 = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransportReset {
    None,
    Due,
    /// The guest has the event. It has taken it in when its available index is no longer this.
    Sent {
        available: u16,
    },
}

/// The device. See the module.
#[derive(Debug)]
pub struct VsockDevice {
    cid: GuestCid,
    muxer: Muxer,
    active: bool,
    transport_reset: TransportReset,
    /// The driver owes buffers: nothing is sent to the guest until it notifies.
    starved: bool,
    /// There is work left that nothing else will announce.
    unfinished: bool,
    buffers: Vec<Descriptor>,
    scratch: Vec<u8>,
}

impl VsockDevice {
    /// Clients come in over this listener.
    pub fn new(cid: GuestCid, listener: UnixListener) -> Result<VsockDevice, VsockError> {
        VsockDevice::with_port(cid, listener, HOST_PORTS.start)
    }

    pub fn listener(&self) -> &UnixListener {
        self.muxer.listener()
    }

    fn with_port(cid: GuestCid, listener: UnixListener, port: u32) -> Result<VsockDevice, VsockError> {
        listener.set_nonblocking(true).map_err(VsockError::Listener)?;
        Ok(VsockDevice {
            cid,
            muxer: Muxer::new(cid.get().into(), listener, port),
            active: false,
            transport_reset: TransportReset::None,
            starved: false,
            unfinished: false,
            buffers: Vec::new(),
            scratch: Vec::new(),
        })
    }

    pub fn save(&self) -> VsockState {
        VsockState { cid: self.cid.get().into(), next_port: self.muxer.next_port(), active: self.active }
    }

    /// Makes the device anew, with a new id and without connections. The guest will be told.
    pub fn restored(
        state: &VsockState,
        new_cid: GuestCid,
        listener: UnixListener,
    ) -> Result<VsockDevice, VsockError> {
        state.check()?;
        let mut device = VsockDevice::with_port(new_cid, listener, state.next_port)?;
        if state.active {
            device.active = true;
            device.transport_reset = TransportReset::Due;
        }
        Ok(device)
    }

    /// Does all that can be done for now.
    fn run(&mut self, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        self.unfinished = false;
        self.announce_reset(driver)?;
        self.receive_from_guest(driver)?;
        self.send_to_guest(driver)
    }

    fn announce_reset(&mut self, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        let memory = driver.memory;
        let Some(mut ring) = Ring::open(driver, EVENT, "event") else {
            return Ok(());
        };
        match self.transport_reset {
            TransportReset::None => return Ok(()),
            TransportReset::Due => {
                let Some(chain) = ring.next()? else {
                    return Ok(());
                };
                let head = chain.head_index();
                self.buffers.clear();
                ring.buffers(chain, true, &mut self.buffers)?;
                let event = EVENT_TRANSPORT_RESET.to_le_bytes();
                let buffer = self.buffers.first().filter(|buffer| buffer.len() as usize >= event.len());
                let buffer = buffer.ok_or_else(|| ring.fault("a buffer without room for an event"))?;
                let written = memory.write_slice(&event, buffer.addr());
                written.map_err(|error| ring.fault(error))?;
                // Before the guest can answer by offering the buffer again.
                let available = ring.available_index()?;
                ring.notify_from(available)?;
                ring.give(head, u32::try_from(event.len()).unwrap_or(0))?;
                self.transport_reset = TransportReset::Sent { available };
            }
            TransportReset::Sent { available } => {
                if ring.available_index()? != available {
                    self.transport_reset = TransportReset::None;
                }
            }
        }
        ring.finish()
    }

    fn receive_from_guest(&mut self, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        let memory = driver.memory;
        let Some(mut ring) = Ring::open(driver, TRANSMIT, "transmit") else {
            return Ok(());
        };
        for turn in 0..=PACKETS_PER_CALL {
            if turn == PACKETS_PER_CALL {
                self.unfinished = true;
                break;
            }
            let Some(chain) = ring.next()? else { break };
            let head = chain.head_index();
            self.buffers.clear();
            ring.buffers(chain, false, &mut self.buffers)?;
            gather(memory, &self.buffers, &mut self.scratch).map_err(|error| ring.fault(error))?;
            let Some((header, rest)) = self.scratch.split_first_chunk::<PKT_HEADER_SIZE>() else {
                return Err(ring.fault("a packet shorter than its header"));
            };
            let header = Header::decode(header);
            let length = Some(header.length).filter(|&length| length <= MAX_PAYLOAD);
            let payload = length.and_then(|length| rest.get(..length as usize));
            let of_old_connection = self.transport_reset != TransportReset::None;
            if !of_old_connection || header.operation == Operation::Request {
                self.muxer.packet(&header, payload);
            }
            ring.give(head, 0)?;
        }
        ring.finish()
    }

    fn send_to_guest(&mut self, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        let memory = driver.memory;
        if self.starved {
            return Ok(());
        }
        let Some(mut ring) = Ring::open(driver, RECEIVE, "receive") else {
            return Ok(());
        };
        for turn in 0..=PACKETS_PER_CALL {
            if !self.muxer.has_output() {
                break;
            }
            if turn == PACKETS_PER_CALL {
                self.unfinished = true;
                break;
            }
            let Some(mut chain) = ring.next()? else {
                self.starved = true;
                break;
            };
            let head = chain.head_index();
            let mut packet = VsockPacket::from_rx_virtq_chain(memory, &mut chain, u32::MAX)
                .map_err(|error| ring.fault(error))?;
            let Some(space) = packet.data_slice() else {
                return Err(ring.fault("a buffer without room for data"));
            };
            let Some(header) = self.muxer.output(space) else {
                ring.put_back(1);
                break;
            };
            let written = packet.set_header_from_raw(&header.encode());
            written.map_err(|error| ring.fault(error))?;
            ring.give(head, header.length.saturating_add(HEADER_LENGTH))?;
        }
        ring.finish()
    }
}

const HEADER_LENGTH: u32 = 44;
const _: () = assert!(HEADER_LENGTH as usize == PKT_HEADER_SIZE);

/// Copies a chain, up to the largest packet.
fn gather(
    memory: &GuestMemoryMmap,
    buffers: &[Descriptor],
    bytes: &mut Vec<u8>,
) -> Result<(), vm_memory::GuestMemoryError> {
    let limit = PKT_HEADER_SIZE + MAX_PAYLOAD as usize;
    bytes.clear();
    for buffer in buffers {
        let start = bytes.len();
        let count = (buffer.len() as usize).min(limit - start);
        if count > 0 {
            bytes.resize(start + count, 0);
            memory.read_slice(&mut bytes[start..], buffer.addr())?;
        }
    }
    Ok(())
}

impl VirtioDevice for VsockDevice {
    fn kind(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    /// None: without any, a device has stream sockets.
    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &QUEUE_SIZES
    }

    fn is_busy(&self, queue: usize) -> bool {
        queue == TRANSMIT
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = u64::from(self.cid.get()).to_le_bytes();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
        let count = data.len().min(config.len() - start);
        data.fill(0);
        data[..count].copy_from_slice(&config[start..start + count]);
    }

    fn activate(&mut self, _features: u64) {
        self.active = true;
    }

    fn reset(&mut self) {
        self.muxer.reset();
        self.active = false;
        self.transport_reset = TransportReset::None;
        self.starved = false;
        self.unfinished = false;
    }

    fn queue_notified(&mut self, queue: usize, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        if !self.active {
            return Ok(());
        }
        if queue == RECEIVE {
            self.starved = false;
        }
        self.muxer.retry_accept();
        self.run(driver)
    }

    fn host_events(&self) -> Vec<HostEvent<'_>> {
        if !self.active {
            return Vec::new();
        }
        let mut events = Vec::new();
        let mut wait = |fd, token, readable, writable| {
            events.push(HostEvent { fd, token, readable, writable });
        };
        if self.transport_reset == TransportReset::None && self.muxer.has_room() {
            wait(self.muxer.listener().as_fd(), LISTENER, true, false);
        }
        for (port, stream, readable, writable) in self.muxer.wishes() {
            wait(stream.as_fd(), port, readable, writable);
        }
        events
    }

    fn host_event(&mut self, token: u32, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        if !self.active {
            return Ok(());
        }
        match token {
            LISTENER if self.transport_reset != TransportReset::None => {}
            LISTENER => self.muxer.accept(),
            port => self.muxer.client_ready(port),
        }
        self.run(driver)
    }

    fn is_unfinished(&self) -> bool {
        self.unfinished
    }
}
