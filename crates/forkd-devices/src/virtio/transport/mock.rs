//! A driver for tests, which reaches a device only through its registers and guest memory.
//!
//! virtio-queue's `MockSplitQueue` is not it: its used ring lies over the second half of its available ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_mmio::*;
use virtio_bindings::virtio_ring::{
    VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC, VRING_DESC_F_INDIRECT, VRING_DESC_F_NEXT,
    VRING_DESC_F_WRITE,
};
use virtio_queue::desc::{RawDescriptor, split::Descriptor};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::{Interrupt, MmioTransport};
use crate::virtio::VirtioDevice;

pub(crate) const MEMORY: u64 = 4 << 20;
pub(crate) const NEXT: u16 = VRING_DESC_F_NEXT.to_le_bytes()[0] as u16;
pub(crate) const WRITE: u16 = VRING_DESC_F_WRITE.to_le_bytes()[0] as u16;
pub(crate) const INDIRECT: u16 = VRING_DESC_F_INDIRECT.to_le_bytes()[0] as u16;
/// Buffers of tests begin here, after the queues.
pub(crate) const BUFFERS: u64 = 1 << 20;

pub(crate) const FEATURES: u64 =
    (1 << VIRTIO_F_VERSION_1) | (1 << VIRTIO_RING_F_EVENT_IDX) | (1 << VIRTIO_RING_F_INDIRECT_DESC);

/// Counts the edges.
#[derive(Debug, Default)]
pub(crate) struct CountedInterrupt(AtomicU32);

impl Interrupt for CountedInterrupt {
    fn trigger(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl CountedInterrupt {
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A buffer of a chain.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffer {
    pub address: u64,
    pub length: u32,
    pub writable: bool,
}

pub(crate) fn readable(address: u64, length: u32) -> Buffer {
    Buffer { address, length, writable: false }
}

pub(crate) fn writable(address: u64, length: u32) -> Buffer {
    Buffer { address, length, writable: true }
}

#[derive(Debug)]
pub(crate) struct MockDriver<D> {
    pub transport: MmioTransport<D>,
    pub memory: GuestMemoryMmap,
    pub interrupt: Arc<CountedInterrupt>,
    /// The size that queues get.
    pub queue_size: u16,
}

pub(crate) fn memory() -> GuestMemoryMmap {
    GuestMemoryMmap::from_ranges(&[(GuestAddress(0), usize::try_from(MEMORY).unwrap())]).unwrap()
}

impl<D: VirtioDevice> MockDriver<D> {
    /// A device that has not been touched.
    pub fn new(device: D) -> MockDriver<D> {
        let memory = memory();
        let interrupt = Arc::new(CountedInterrupt::default());
        let transport = MmioTransport::new(device, memory.clone(), interrupt.clone()).unwrap();
        MockDriver { transport, memory, interrupt, queue_size: 16 }
    }

    /// A device with all its features accepted and all its queues set up.
    pub fn running(device: D) -> MockDriver<D> {
        let features = device.features() | FEATURES;
        let mut driver = MockDriver::new(device);
        driver.start(features);
        assert_eq!(driver.read(VIRTIO_MMIO_STATUS), 15);
        driver
    }

    /// The whole handshake.
    pub fn start(&mut self, features: u64) {
        self.negotiate(features);
        for queue in 0..self.transport.queues.len() {
            self.set_up_queue(queue);
        }
        self.write(VIRTIO_MMIO_STATUS, 15);
    }

    pub fn negotiate(&mut self, features: u64) {
        self.write(VIRTIO_MMIO_STATUS, 0);
        self.write(VIRTIO_MMIO_STATUS, 1);
        self.write(VIRTIO_MMIO_STATUS, 3);
        for half in 0..2 {
            self.write(VIRTIO_MMIO_DRIVER_FEATURES_SEL, half);
            self.write(
                VIRTIO_MMIO_DRIVER_FEATURES,
                u32::try_from(features >> (32 * half) & 0xffff_ffff).unwrap(),
            );
        }
        self.write(VIRTIO_MMIO_STATUS, 11);
    }

    pub fn set_up_queue(&mut self, queue: usize) {
        self.write(VIRTIO_MMIO_QUEUE_SEL, u32::try_from(queue).unwrap());
        self.write(VIRTIO_MMIO_QUEUE_NUM, self.queue_size.into());
        for (register, address) in [
            (VIRTIO_MMIO_QUEUE_DESC_LOW, descriptors(queue)),
            (VIRTIO_MMIO_QUEUE_AVAIL_LOW, available(queue)),
            (VIRTIO_MMIO_QUEUE_USED_LOW, used(queue)),
        ] {
            self.write(register, u32::try_from(address).unwrap());
            self.write(register + 4, 0);
        }
        self.write(VIRTIO_MMIO_QUEUE_READY, 1);
    }

    pub fn read(&self, register: u32) -> u32 {
        let mut data = [0; 4];
        self.transport.read(register.into(), &mut data);
        u32::from_le_bytes(data)
    }

    pub fn write(&mut self, register: u32, value: u32) {
        self.transport.write(register.into(), &value.to_le_bytes());
    }

    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(address)).unwrap();
    }

    pub fn get(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_slice(&mut bytes, GuestAddress(address)).unwrap();
        bytes
    }

    pub fn put_descriptor(&self, table: u64, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let descriptor = RawDescriptor::from(Descriptor::new(address, length, flags, next));
        let at = GuestAddress(table + 16 * u64::from(index));
        self.memory.write_obj(descriptor, at).unwrap();
    }

    /// Writes the buffers as a chain that begins at descriptor `first`, and offers it.
    pub fn offer(&self, queue: usize, first: u16, buffers: &[Buffer]) {
        self.put_chain(descriptors(queue), first, buffers);
        self.offer_head(queue, first);
    }

    /// Writes the buffers as a chain into a descriptor table.
    pub fn put_chain(&self, table: u64, first: u16, buffers: &[Buffer]) {
        let last = buffers.len() - 1;
        for (index, buffer) in buffers.iter().enumerate() {
            let flags = if buffer.writable { WRITE } else { 0 } | if index < last { NEXT } else { 0 };
            let at = first + u16::try_from(index).unwrap();
            self.put_descriptor(table, at, buffer.address, buffer.length, flags, at + 1);
        }
    }

    pub fn offer_head(&self, queue: usize, head: u16) {
        let index = self.available_index(queue);
        let slot = u64::from(index % self.queue_size);
        self.put(available(queue) + 4 + 2 * slot, &head.to_le_bytes());
        self.put_available_index(queue, index.wrapping_add(1));
    }

    pub fn available_index(&self, queue: usize) -> u16 {
        u16::from_le_bytes(self.get(available(queue) + 2, 2).try_into().unwrap())
    }

    pub fn put_available_index(&self, queue: usize, index: u16) {
        self.put(available(queue) + 2, &index.to_le_bytes());
    }

    pub fn notify(&mut self, queue: usize) {
        self.write(VIRTIO_MMIO_QUEUE_NOTIFY, u32::try_from(queue).unwrap());
    }

    /// How many chains the device has returned.
    pub fn used_index(&self, queue: usize) -> u16 {
        u16::from_le_bytes(self.get(used(queue) + 2, 2).try_into().unwrap())
    }

    /// A returned chain: its head and the bytes written to it.
    pub fn used(&self, queue: usize, index: u16) -> (u32, u32) {
        let at = used(queue) + 4 + 8 * u64::from(index % self.queue_size);
        let word = |at| u32::from_le_bytes(self.get(at, 4).try_into().unwrap());
        (word(at), word(at + 4))
    }

    /// The text of the fault that stopped the device.
    pub fn fault(&self) -> &str {
        &self.transport.fault().unwrap().0
    }
}

pub(crate) fn descriptors(queue: usize) -> u64 {
    0x1_0000 * (queue as u64 + 1)
}

pub(crate) fn available(queue: usize) -> u64 {
    descriptors(queue) + 0x4000
}

pub(crate) fn used(queue: usize) -> u64 {
    descriptors(queue) + 0x8000
}
