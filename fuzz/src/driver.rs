//! A driver that a fuzzer writes: it reaches a device through its registers, guest memory and host events only.
//!
//! ```text
//!   input:  setup u8 | subject u8 | step | step | …
//!
//!   guest memory, 1 MiB:  0x10000 × (queue + 1)  descriptors, + 0x4000 available ring, + 0x8000 used ring
//! ```
//!
//! In half of the inputs the device is running with good queues before the first step, because a fuzzer that has to find
//! the handshake finds little else. However the script ends, the VM can be saved and restored.

use std::sync::Arc;

use forkd_devices::virtio::VirtioDevice;
use forkd_devices::virtio::transport::{Interrupt, MmioTransport, TransportState};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::script::{Step, byte};

pub const MEMORY: usize = 1 << 20;
/// Longer scripts are cut off, so that no input takes for ever.
const MAX_STEPS: usize = 256;

/// Bits of the setup.
pub const SET_UP: u8 = 1;
pub const EVENT_INDEX: u8 = 2;
pub const ALL_FEATURES: u8 = 4;
/// Two bits: 16 entries, 4, 1 or as many as possible.
const QUEUE_SIZE_SHIFT: u8 = 3;

/// The host's side of a device.
pub trait Subject: Sized {
    type Device: VirtioDevice;

    /// Makes the host's side and the device. The number chooses between variants of it.
    fn new(variant: u8) -> (Self, Self::Device);

    /// Makes the device anew from its saved state. This never fails for a state that a guest has reached.
    fn restored(&mut self, device: &mut Self::Device) -> Self::Device;

    /// Does something that only this host does.
    fn act(&mut self, _device: &mut Self::Device, _action: u8, _bytes: &[u8]) {}
}

/// What a script has led to.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The chains that came back, for each queue.
    pub used: Vec<u16>,
    pub fault: Option<String>,
}

#[derive(Debug)]
struct Silence;

impl Interrupt for Silence {
    fn trigger(&self) {}
}

struct Fuzzed<S: Subject> {
    subject: S,
    transport: MmioTransport<S::Device>,
    memory: GuestMemoryMmap,
}

/// Runs a script. Panics where a device breaks its promises.
pub fn drive<S: Subject>(mut script: &[u8]) -> Outcome {
    let script = &mut script;
    let setup = byte(script).unwrap_or(0);
    let mut fuzzed = Fuzzed::<S>::new(byte(script).unwrap_or(0));
    if setup & SET_UP != 0 {
        fuzzed.set_up(setup);
    }
    for _ in 0..MAX_STEPS {
        let Some(step) = Step::decode(script) else { break };
        fuzzed.step(step);
    }
    for _ in 0..3 {
        if fuzzed.transport.is_unfinished() {
            fuzzed.transport.kick();
        }
    }
    let outcome = fuzzed.outcome();
    fuzzed.restore();
    outcome
}

impl<S: Subject> Fuzzed<S> {
    fn new(variant: u8) -> Self {
        let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY)]).unwrap();
        let (subject, device) = S::new(variant);
        let transport = MmioTransport::new(device, memory.clone(), Arc::new(Silence)).unwrap();
        Fuzzed { subject, transport, memory }
    }

    /// The handshake of a good driver.
    fn set_up(&mut self, setup: u8) {
        let mut features = (1 << VIRTIO_F_VERSION_1) | (1 << VIRTIO_RING_F_INDIRECT_DESC);
        if setup & EVENT_INDEX != 0 {
            features |= 1 << VIRTIO_RING_F_EVENT_IDX;
        }
        if setup & ALL_FEATURES != 0 {
            features |= self.transport.device().features();
        }
        self.write(VIRTIO_MMIO_STATUS, 1);
        self.write(VIRTIO_MMIO_STATUS, 3);
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, select);
            self.write(VIRTIO_MMIO_DRIVER_FEATURES, half);
        }
        self.write(VIRTIO_MMIO_STATUS, 11);
        for (queue, &most) in (0..).zip(self.transport.device().queue_sizes()) {
            let size = [16, 4, 1, most][usize::from(setup >> QUEUE_SIZE_SHIFT & 3)];
            self.write(VIRTIO_MMIO_QUEUE_SEL, queue);
            self.write(VIRTIO_MMIO_QUEUE_NUM, size.into());
            self.write(VIRTIO_MMIO_QUEUE_DESC_LOW, descriptors(queue));
            self.write(VIRTIO_MMIO_QUEUE_AVAIL_LOW, available(queue));
            self.write(VIRTIO_MMIO_QUEUE_USED_LOW, used(queue));
            self.write(VIRTIO_MMIO_QUEUE_READY, 1);
        }
        self.write(VIRTIO_MMIO_STATUS, 15);
        assert!(self.transport.is_running(), "{:?}", self.transport.fault());
    }

    fn write(&mut self, register: u32, value: u32) {
        self.transport.write(register.into(), &value.to_le_bytes());
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Register { register, value } => self.write(u32::from(register) * 4, value),
            Step::Access { offset, mut bytes } => {
                self.transport.write(offset.into(), &bytes);
                self.transport.read(offset.into(), &mut bytes);
            }
            // What lies outside of memory is not written.
            Step::Memory { address, bytes } => {
                let _ = self.memory.write(&bytes, GuestAddress(address.into()));
            }
            Step::Descriptor { queue, index, address, length, flags, next } => {
                let [a, b, c, d] = address.to_le_bytes();
                let [e, f, g, h] = length.to_le_bytes();
                let bytes = [a, b, c, d, 0, 0, 0, 0, e, f, g, h, flags, 0, next, 0];
                self.put(descriptors(self.queue(queue)) + 16 * u32::from(index), &bytes);
            }
            Step::Offer { queue, head } => self.offer(self.queue(queue), head),
            Step::Notify { queue } => self.write(VIRTIO_MMIO_QUEUE_NOTIFY, queue.into()),
            Step::Ready { event } => {
                let tokens: Vec<u32> = self.transport.host_events().iter().map(|event| event.token).collect();
                if !tokens.is_empty() {
                    self.transport.host_event(tokens[usize::from(event) % tokens.len()]);
                }
            }
            Step::Token { token } => self.transport.host_event(token),
            Step::Host { action, bytes } => {
                self.subject.act(self.transport.device_mut(), action, &bytes);
            }
            Step::Restore => self.restore(),
            Step::Tamper { field, value } => self.restore_tampered(field, value),
            Step::Kick => self.transport.kick(),
            Step::ConfigChanged => self.transport.config_changed(),
        }
    }

    /// A number of a queue that there is.
    fn queue(&self, queue: u8) -> u32 {
        let queues = self.transport.device().queue_sizes().len();
        (usize::from(queue) % queues) as u32
    }

    fn put(&self, address: u32, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address.into())).unwrap();
    }

    fn get(&self, address: u32) -> u16 {
        let mut bytes = [0; 2];
        self.memory.read_slice(&mut bytes, GuestAddress(address.into())).unwrap();
        u16::from_le_bytes(bytes)
    }

    fn offer(&self, queue: u32, head: u16) {
        let size = self.transport.state().queues[queue as usize].size.max(1);
        let index = self.get(available(queue) + 2);
        self.put(available(queue) + 4 + 2 * u32::from(index % size), &head.to_le_bytes());
        self.put(available(queue) + 2, &index.wrapping_add(1).to_le_bytes());
    }

    fn restore(&mut self) {
        let state = self.transport.state();
        let device = self.subject.restored(self.transport.device_mut());
        let restored = MmioTransport::restore(device, self.memory.clone(), Arc::new(Silence), &state);
        match restored {
            Ok(restored) => {
                assert_eq!(restored.state(), state);
                self.transport = restored;
                self.transport.kick();
            }
            Err(error) => panic!("{error}: {state:?}"),
        }
    }

    /// Restores from a state in which one number is another. If that is refused, all is as it was.
    fn restore_tampered(&mut self, field: u8, value: u64) {
        let mut state = self.transport.state();
        tamper(&mut state, field, value);
        let device = self.subject.restored(self.transport.device_mut());
        let restored = MmioTransport::restore(device, self.memory.clone(), Arc::new(Silence), &state);
        if let Ok(restored) = restored {
            self.transport = restored;
            self.transport.kick();
        }
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            used: self.transport.state().queues.iter().map(|queue| queue.next_used).collect(),
            fault: self.transport.fault().map(|fault| fault.0.clone()),
        }
    }
}

/// The low four bits choose the field, the others the queue.
fn tamper(state: &mut TransportState, field: u8, value: u64) {
    let queues = state.queues.len();
    let Some(queue) = state.queues.get_mut(usize::from(field >> 4) % queues.max(1)) else {
        return;
    };
    match field & 15 {
        0 => state.status = value as u32,
        1 => state.driver_features = value,
        2 => state.queue_select = value as u32,
        3 => state.interrupt_status = value as u32,
        4 => state.config_generation = value as u32,
        5 => state.fault = (value > 0).then(|| "x".repeat(value as usize & 0xfff)),
        6 => queue.max_size = value as u16,
        7 => queue.size = value as u16,
        8 => queue.ready = value & 1 != 0,
        9 => queue.event_idx = value & 1 != 0,
        10 => queue.next_avail = value as u16,
        11 => queue.next_used = value as u16,
        12 => queue.desc_table = value,
        13 => queue.avail_ring = value,
        14 => queue.used_ring = value,
        _ => state.queues.truncate(value as usize & 3),
    }
}

fn descriptors(queue: u32) -> u32 {
    0x1_0000 * (queue + 1)
}

fn available(queue: u32) -> u32 {
    descriptors(queue) + 0x4000
}

fn used(queue: u32) -> u32 {
    descriptors(queue) + 0x8000
}
