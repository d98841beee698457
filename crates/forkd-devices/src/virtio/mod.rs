//! Virtio devices and what they share.
//!
//! One thread serves all devices of a VM. It waits for notifications of queues and for descriptors of the host, and calls
//! the device that they belong to. A call does all that can be done and returns: nothing is in flight between two calls, so
//! a VM whose device thread is parked between calls has all of its device state in the devices and in guest memory.

pub mod block;
mod chain;
pub mod net;
mod ring;
pub mod rng;
pub mod transport;
pub mod vsock;

use std::os::fd::BorrowedFd;

use virtio_queue::Queue;
use vm_memory::GuestMemoryMmap;

/// What a device sees of its driver during one call.
#[derive(Debug)]
pub struct Driver<'a> {
    pub memory: &'a GuestMemoryMmap,
    pub queues: &'a mut [Queue],
    /// Set by the device when it has put something into a used ring that the driver wants to hear about.
    pub interrupt: bool,
}

/// The driver broke the rules. The device stops and asks to be reset; the text says what it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DriverFault(pub String);

/// A descriptor of the host that a device waits for, with a number that the device understands.
#[derive(Debug, Clone, Copy)]
pub struct HostEvent<'a> {
    pub fd: BorrowedFd<'a>,
    pub token: u32,
    pub readable: bool,
    pub writable: bool,
}

/// A device behind a virtio transport. Everything in guest memory and every register value is hostile.
pub trait VirtioDevice: Send {
    /// The type of device, as virtio numbers them.
    fn kind(&self) -> u32;

    /// The features on offer, without those of the transport and the rings.
    fn features(&self) -> u64;

    /// The largest size of each queue.
    fn queue_sizes(&self) -> &'static [u16];

    /// Whether the driver notifies this queue often enough that it is worth a way around the process that has the VM. One into which
    /// it only puts empty buffers is not: the device asks for a notification when it has run out of them.
    fn is_busy(&self, _queue: usize) -> bool {
        true
    }

    /// Reads the configuration space; bytes beyond its end read as zero.
    fn read_config(&self, offset: u64, data: &mut [u8]);

    /// Writes the configuration space; what cannot be written is ignored.
    fn write_config(&mut self, _offset: u64, _data: &[u8]) {}

    /// The driver is ready, with these features of the ones on offer. Also called for a device that was restored with a
    /// driver: it keeps the state that it was made from.
    fn activate(&mut self, features: u64);

    /// Back to the state before any driver.
    fn reset(&mut self);

    /// The driver has put something into this queue.
    fn queue_notified(&mut self, queue: usize, driver: &mut Driver<'_>) -> Result<(), DriverFault>;

    /// The descriptors to wait for now. Asked again after every call.
    fn host_events(&self) -> Vec<HostEvent<'_>> {
        Vec::new()
    }

    /// One of them is ready.
    fn host_event(&mut self, _token: u32, _driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        Ok(())
    }

    /// Whether the last call stopped with work left, so that one call does not take for ever. Someone has to call again.
    fn is_unfinished(&self) -> bool {
        false
    }
}

impl<D: VirtioDevice + ?Sized> VirtioDevice for Box<D> {
    fn kind(&self) -> u32 {
        (**self).kind()
    }

    fn features(&self) -> u64 {
        (**self).features()
    }

    fn queue_sizes(&self) -> &'static [u16] {
        (**self).queue_sizes()
    }

    fn is_busy(&self, queue: usize) -> bool {
        (**self).is_busy(queue)
    }

    fn read_config(&self, offset: u64, data: &mut [u8]) {
        (**self).read_config(offset, data);
    }

    fn write_config(&mut self, offset: u64, data: &[u8]) {
        (**self).write_config(offset, data);
    }

    fn activate(&mut self, features: u64) {
        (**self).activate(features);
    }

    fn reset(&mut self) {
        (**self).reset();
    }

    fn queue_notified(&mut self, queue: usize, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        (**self).queue_notified(queue, driver)
    }

    fn host_events(&self) -> Vec<HostEvent<'_>> {
        (**self).host_events()
    }

    fn host_event(&mut self, token: u32, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        (**self).host_event(token, driver)
    }

    fn is_unfinished(&self) -> bool {
        (**self).is_unfinished()
    }
}
