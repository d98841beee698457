//! The network device: frames between a guest and a tap.
//!
//! The tap comes as a descriptor and is set up by its creator:
//! - IFF_TAP, IFF_NO_PI and IFF_VNET_HDR, and TUNSETVNETHDRSZ with 12: every frame follows a `virtio_net_hdr_v1`
//! - TUNSETOFFLOAD with TUN_F_CSUM, TUN_F_TSO4 and TUN_F_TSO6, to match the features on offer; none for UDP
//! - non-blocking
//!
//! ```text
//!   receive   tap ──read──▶ one frame ──spread──▶ as many chains as it needs, or it waits here for more of them
//!   transmit  a chain ──gather──▶ one frame ──write──▶ tap; a full tap leaves the chain in the ring
//! ```
//!
//! A frame that the tap does not take at once is tried again when the tap is writable. Dropping it would be as correct,
//! but waiting costs no memory (the frame stays in the guest's) and slows down the sender instead of its connections.
//!
//! A save keeps no frames. The one that may wait for chains is lost in the copy, as a network may lose any.

mod frame;
#[cfg(test)]
pub(in crate::virtio) mod mock;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use virtio_bindings::bindings::virtio_net::{
    VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_MAC, VIRTIO_NET_F_MRG_RXBUF,
    VIRTIO_NET_F_MTU, VIRTIO_NET_F_STATUS, VIRTIO_NET_S_LINK_UP,
};
use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_queue::desc::split::Descriptor;
use vm_memory::Bytes;

use super::ring::Ring;
use super::{Driver, DriverFault, HostEvent, VirtioDevice};
use frame::{HEADER, MAX_FRAME};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUE_SIZES: [u16; 2] = [256, 256];

/// So many frames in each direction, then the other devices have their turn.
const FRAMES_PER_CALL: usize = 64;

const TAP: u32 = 0;

/// The smallest MTU that carries IPv4.
const MIN_MTU: u16 = 68;

/// What the guest is told about its network card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetSettings {
    pub mac: [u8; 6],
    /// None leaves the guest at its own default, which is 1500.
    pub mtu: Option<u16>,
}

/// The device without its tap and without frames.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetState {
    pub settings: NetSettings,
    /// What a driver has negotiated; none before there is one.
    pub features: Option<u64>,
}

/// These are not the settings or the state of a network device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NetError {
    #[error("the MAC address {0:02x?} is not that of a single card")]
    Mac([u8; 6]),
    #[error("an MTU of {0}; at least {MIN_MTU} is expected")]
    Mtu(u16),
    #[error("negotiated features {0:#x}, which were not offered")]
    Features(u64),
}

/// The device. See the module.
#[derive(Debug)]
pub struct NetDevice {
    settings: NetSettings,
    tap: OwnedFd,
    /// The interface behind the descriptor is gone; it will not come back.
    tap_gone: bool,
    features: Option<u64>,
    /// Room for one frame from the tap; empty until the first.
    incoming: Vec<u8>,
    /// The length of the frame in it that waits for chains.
    held: Option<usize>,
    /// The driver owes chains: nothing is read until it notifies.
    starved: bool,
    outgoing: Vec<u8>,
    /// The tap did not take the next frame to transmit.
    tap_full: bool,
    /// There may be more to transmit, which no notification will announce.
    unfinished: bool,
    buffers: Vec<Descriptor>,
}

impl NetDevice {
    pub fn new(settings: NetSettings, tap: OwnedFd) -> Result<NetDevice, NetError> {
        let [first, ..] = settings.mac;
        if first & 1 != 0 || settings.mac == [0; 6] {
            return Err(NetError::Mac(settings.mac));
        }
        if let Some(mtu) = settings.mtu
            && mtu < MIN_MTU
        {
            return Err(NetError::Mtu(mtu));
        }
        Ok(NetDevice {
            settings,
            tap,
            tap_gone: false,
            features: None,
            incoming: Vec::new(),
            held: None,
            starved: false,
            outgoing: Vec::new(),
            tap_full: false,
            unfinished: false,
            buffers: Vec::new(),
        })
    }

    pub fn save(&self) -> NetState {
        NetState { settings: self.settings, features: self.features }
    }

    /// Makes the device anew, on another tap.
    pub fn restored(state: &NetState, tap: OwnedFd) -> Result<NetDevice, NetError> {
        let mut device = NetDevice::new(state.settings, tap)?;
        if let Some(features) = state.features
            && features & !device.features() != 0
        {
            return Err(NetError::Features(features));
        }
        device.features = state.features;
        Ok(device)
    }

    pub fn tap(&self) -> &OwnedFd {
        &self.tap
    }

    /// Moves frames from the tap to the guest.
    fn receive(&mut self, driver: &mut Driver<'_>, features: u64) -> Result<(), DriverFault> {
        let memory = driver.memory;
        let Some(mut ring) = Ring::open(driver, RECEIVE, "receive") else {
            return Ok(());
        };
        for _ in 0..FRAMES_PER_CALL {
            if self.held.is_none() {
                // Without a chain the frame is better off in the tap's queue, where a save does not lose it.
                if ring.next()?.is_none() {
                    self.starved = true;
                    break;
                }
                ring.put_back(1);
                match self.read_tap(features) {
                    Tap::Frame(length) => self.held = Some(length),
                    Tap::Dropped => continue,
                    Tap::Empty => break,
                }
            }
            let Some(length) = self.held else { break };
            let mergeable = features & (1 << VIRTIO_NET_F_MRG_RXBUF) != 0;
            match collect(&mut ring, &mut self.buffers, length, mergeable)? {
                Collected::Chains(chains) => {
                    frame::set_buffers(&mut self.incoming, u16::try_from(chains.len()).unwrap_or(u16::MAX));
                    let mut rest = &self.incoming[..length];
                    for buffer in &self.buffers {
                        if rest.is_empty() {
                            break;
                        }
                        let (part, after) = rest.split_at(rest.len().min(buffer.len() as usize));
                        let written = memory.write_slice(part, buffer.addr());
                        written.map_err(|error| ring.fault(error))?;
                        rest = after;
                    }
                    ring.give_together(&chains)?;
                    self.held = None;
                }
                Collected::TooFew => {
                    self.starved = true;
                    break;
                }
                Collected::TooSmall => self.held = None,
            }
        }
        ring.finish()
    }

    fn read_tap(&mut self, features: u64) -> Tap {
        if self.tap_gone {
            return Tap::Empty;
        }
        self.incoming.resize(MAX_FRAME, 0);
        match rustix::io::retry_on_intr(|| rustix::io::read(&self.tap, &mut self.incoming[..])) {
            Ok(length) if length > 0 => {
                if frame::may_enter(&mut self.incoming[..length], features) {
                    Tap::Frame(length)
                } else {
                    Tap::Dropped
                }
            }
            Err(Errno::AGAIN) => Tap::Empty,
            // The kernel has met a frame that its own header cannot describe, and has dropped it.
            Err(Errno::INVAL) => Tap::Dropped,
            Ok(_) | Err(_) => {
                self.tap_gone = true;
                Tap::Empty
            }
        }
    }

    /// Moves frames from the guest to the tap.
    fn transmit(&mut self, driver: &mut Driver<'_>, features: u64) -> Result<(), DriverFault> {
        let memory = driver.memory;
        self.tap_full = false;
        self.unfinished = false;
        let Some(mut ring) = Ring::open(driver, TRANSMIT, "transmit") else {
            return Ok(());
        };
        for turn in 0..=FRAMES_PER_CALL {
            if turn == FRAMES_PER_CALL {
                self.unfinished = true;
                break;
            }
            let Some(chain) = ring.next()? else { break };
            let head = chain.head_index();
            self.buffers.clear();
            let length = ring.buffers(chain, false, &mut self.buffers)?;
            if length <= MAX_FRAME as u64 {
                self.outgoing.clear();
                for buffer in &self.buffers {
                    let start = self.outgoing.len();
                    self.outgoing.resize(start + buffer.len() as usize, 0);
                    let read = memory.read_slice(&mut self.outgoing[start..], buffer.addr());
                    read.map_err(|error| ring.fault(error))?;
                }
                if !self.tap_gone && frame::may_leave(&self.outgoing, features) {
                    let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.tap, &self.outgoing));
                    // Other errors (the interface is down, an invalid header) lose this frame only.
                    if written == Err(Errno::AGAIN) {
                        ring.put_back(1);
                        self.tap_full = true;
                        break;
                    }
                }
            }
            ring.give(head, 0)?;
        }
        ring.finish()
    }

    fn config(&self) -> [u8; 12] {
        let mut config = [0; 12];
        config[..6].copy_from_slice(&self.settings.mac);
        config[6] = u8::try_from(VIRTIO_NET_S_LINK_UP).unwrap_or(1);
        // Two bytes for the number of queue pairs stay zero: there is no choice of it.
        config[10..].copy_from_slice(&self.settings.mtu.unwrap_or(0).to_le_bytes());
        config
    }
}

enum Tap {
    /// A frame of this length is in the buffer.
    Frame(usize),
    Dropped,
    Empty,
}

enum Collected {
    /// The heads of the chains and how much of the frame goes into each.
    Chains(Vec<(u16, u32)>),
    /// The driver has to add some; those that were there are in the ring again.
    TooFew,
    /// However long it waits, this frame will not fit.
    TooSmall,
}

/// Takes as many chains as a frame needs and lists their buffers.
fn collect(
    ring: &mut Ring<'_>,
    buffers: &mut Vec<Descriptor>,
    length: usize,
    mergeable: bool,
) -> Result<Collected, DriverFault> {
    buffers.clear();
    let mut chains = Vec::new();
    let mut rest = length as u64;
    while rest > 0 {
        let taken = u16::try_from(chains.len()).unwrap_or(u16::MAX);
        if taken == ring.size() || (taken == 1 && !mergeable) {
            ring.put_back(taken);
            return Ok(Collected::TooSmall);
        }
        let Some(chain) = ring.next()? else {
            ring.put_back(taken);
            return Ok(Collected::TooFew);
        };
        let head = chain.head_index();
        let room = ring.buffers(chain, true, buffers)?;
        if room < HEADER as u64 {
            return Err(ring.fault("a buffer without room for a header"));
        }
        let part = rest.min(room);
        rest -= part;
        chains.push((head, u32::try_from(part).unwrap_or(u32::MAX)));
    }
    Ok(Collected::Chains(chains))
}

impl VirtioDevice for NetDevice {
    fn kind(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn features(&self) -> u64 {
        let always = [
            VIRTIO_NET_F_MAC,
            VIRTIO_NET_F_STATUS,
            VIRTIO_NET_F_MRG_RXBUF,
            VIRTIO_NET_F_CSUM,
            VIRTIO_NET_F_GUEST_CSUM,
            VIRTIO_NET_F_GUEST_TSO4,
            VIRTIO_NET_F_GUEST_TSO6,
            VIRTIO_NET_F_HOST_TSO4,
            VIRTIO_NET_F_HOST_TSO6,
        ];
        let mtu = self.settings.mtu.map(|_| VIRTIO_NET_F_MTU);
        always.into_iter().chain(mtu).fold(0, |features, bit| features | 1 << bit)
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &QUEUE_SIZES
    }

    fn is_busy(&self, queue: usize) -> bool {
        queue == TRANSMIT
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        let config = self.config();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(config.len());
        let count = data.len().min(config.len() - start);
        data.fill(0);
        data[..count].copy_from_slice(&config[start..start + count]);
    }

    fn activate(&mut self, features: u64) {
        self.features = Some(features & self.features());
    }

    fn reset(&mut self) {
        self.features = None;
        self.held = None;
        self.starved = false;
        self.tap_full = false;
        self.unfinished = false;
    }

    fn queue_notified(&mut self, queue: usize, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        let Some(features) = self.features else {
            return Ok(());
        };
        match queue {
            RECEIVE => {
                self.starved = false;
                self.receive(driver, features)
            }
            TRANSMIT => self.transmit(driver, features),
            _ => Ok(()),
        }
    }

    fn host_events(&self) -> Vec<HostEvent<'_>> {
        // While a frame is held the driver owes chains, so nothing is read over it.
        let readable = !self.starved && !self.tap_gone;
        let writable = self.tap_full;
        if self.features.is_none() || !(readable || writable) {
            return Vec::new();
        }
        vec![HostEvent { fd: self.tap.as_fd(), token: TAP, readable, writable }]
    }

    fn host_event(&mut self, _token: u32, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        let Some(features) = self.features else {
            return Ok(());
        };
        if self.tap_full {
            self.transmit(driver, features)?;
        }
        if !self.starved {
            self.receive(driver, features)?;
        }
        Ok(())
    }

    fn is_unfinished(&self) -> bool {
        self.unfinished
    }
}
