//! virtio-mmio: the registers through which a driver finds, configures and talks to a device.
//!
//! Only the layout of version 2 exists, for drivers of virtio 1.0 and later.
//!
//! ```text
//!   0x000 magic, version, device, vendor      0x050 queue notify
//!   0x010 features of the device, selector    0x060 interrupt status, acknowledge
//!   0x020 features of the driver, selector    0x070 status
//!   0x030 queue selector, sizes, ready        0x080 descriptor, available and used ring of the queue
//!                                             0x0fc generation of the configuration, 0x100 configuration
//! ```
//!
//! `status` has the states of a device. What a driver writes in a state where it may not is ignored, and so is whatever is
//! not 32 bits wide and aligned, except in the configuration space.

mod registers;
mod state;
mod status;

#[cfg(test)]
pub(crate) mod mock;
#[cfg(test)]
mod tests;

pub use state::{QueueState, RestoreError, TransportState};

use std::fmt::Debug;
use std::sync::Arc;

use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestMemoryMmap;

use super::{Driver, DriverFault, HostEvent, VirtioDevice};
use status::Status;

/// The size of the register window in guest memory.
pub const WINDOW: u64 = 0x1000;

/// Where a driver writes the number of a queue to notify it.
pub const NOTIFY_REGISTER: u64 = virtio_bindings::virtio_mmio::VIRTIO_MMIO_QUEUE_NOTIFY as u64;

/// What the transport and the rings offer beside the device's own features.
const TRANSPORT_FEATURES: u64 =
    (1 << VIRTIO_F_VERSION_1) | (1 << VIRTIO_RING_F_EVENT_IDX) | (1 << VIRTIO_RING_F_INDIRECT_DESC);

/// The line to the guest's interrupt controller. An edge for each call.
pub trait Interrupt: Debug + Send + Sync {
    fn trigger(&self);
}

/// A queue size that virtio does not know.
#[derive(Debug, thiserror::Error)]
#[error("queue {queue} of device type {kind} has a size of {size}")]
pub struct QueueSizeError {
    kind: u32,
    queue: usize,
    size: u16,
    source: virtio_queue::Error,
}

/// A device behind its registers.
#[derive(Debug)]
pub struct MmioTransport<D> {
    device: D,
    memory: GuestMemoryMmap,
    interrupt: Arc<dyn Interrupt>,
    status: Status,
    device_features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
    queue_select: u32,
    queues: Vec<Queue>,
    interrupt_status: u32,
    config_generation: u32,
    fault: Option<DriverFault>,
}

impl<D: VirtioDevice> MmioTransport<D> {
    /// A device that no driver has seen yet.
    pub fn new(
        device: D,
        memory: GuestMemoryMmap,
        interrupt: Arc<dyn Interrupt>,
    ) -> Result<Self, QueueSizeError> {
        let make = |(queue, &size): (usize, &u16)| {
            Queue::new(size).map_err(|source| QueueSizeError { kind: device.kind(), queue, size, source })
        };
        let queues: Result<Vec<Queue>, QueueSizeError> =
            device.queue_sizes().iter().enumerate().map(make).collect();
        Ok(MmioTransport {
            queues: queues?,
            device,
            memory,
            interrupt,
            status: Status::default(),
            device_features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            interrupt_status: 0,
            config_generation: 0,
            fault: None,
        })
    }

    pub fn device(&self) -> &D {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut D {
        &mut self.device
    }

    /// What the driver did wrong, if the device has stopped because of it.
    pub fn fault(&self) -> Option<&DriverFault> {
        self.fault.as_ref()
    }

    /// Whether a driver uses the device.
    pub fn is_running(&self) -> bool {
        self.status.is_running()
    }

    /// The driver notified a queue.
    pub fn notify(&mut self, queue: usize) {
        if self.queues.get(queue).is_some_and(|queue| queue.ready()) {
            self.call(|device, driver| device.queue_notified(queue, driver));
        }
    }

    /// What the device waits for now.
    pub fn host_events(&self) -> Vec<HostEvent<'_>> {
        if self.is_running() { self.device.host_events() } else { Vec::new() }
    }

    /// One of the host's descriptors is ready.
    pub fn host_event(&mut self, token: u32) {
        self.call(|device, driver| device.host_event(token, driver));
    }

    /// Whether the device stopped with work left; then [`MmioTransport::kick`] continues with it.
    pub fn is_unfinished(&self) -> bool {
        self.is_running() && self.device.is_unfinished()
    }

    /// Looks into every queue and repeats the interrupt that the driver has not acknowledged. Needed after a restore: what was
    /// on its way in an eventfd when the state was saved did not come along. Neither does harm when it was not needed.
    pub fn kick(&mut self) {
        for queue in 0..self.queues.len() {
            self.notify(queue);
        }
        if self.interrupt_status != 0 {
            self.interrupt.trigger();
        }
    }

    /// The configuration space of the device has changed, and the driver should look at it.
    pub fn config_changed(&mut self) {
        self.config_generation = self.config_generation.wrapping_add(1);
        if self.is_running() {
            self.raise(VIRTIO_MMIO_INT_CONFIG);
        }
    }

    fn offered_features(&self) -> u64 {
        self.device.features() | TRANSPORT_FEATURES
    }

    fn call(&mut self, call: impl FnOnce(&mut D, &mut Driver<'_>) -> Result<(), DriverFault>) {
        if !self.is_running() {
            return;
        }
        let mut driver = Driver { memory: &self.memory, queues: &mut self.queues, interrupt: false };
        let result = call(&mut self.device, &mut driver);
        if driver.interrupt {
            self.raise(VIRTIO_MMIO_INT_VRING);
        }
        if let Err(fault) = result {
            self.fail(fault);
        }
    }

    fn raise(&mut self, reason: u32) {
        self.interrupt_status |= reason;
        self.interrupt.trigger();
    }

    /// Stops the device until the driver resets it.
    fn fail(&mut self, fault: DriverFault) {
        let was_running = self.is_running();
        self.status.set_needs_reset();
        self.fault.get_or_insert(fault);
        if was_running {
            self.raise(VIRTIO_MMIO_INT_CONFIG);
        }
    }

    fn reset(&mut self) {
        self.device.reset();
        self.queues.iter_mut().for_each(QueueT::reset);
        self.status = Status::default();
        self.device_features_select = 0;
        self.driver_features_select = 0;
        self.driver_features = 0;
        self.queue_select = 0;
        self.interrupt_status = 0;
        self.fault = None;
    }

    /// The driver says that it has set up everything.
    fn start(&mut self) {
        let event_idx = self.driver_features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        for (number, queue) in self.queues.iter_mut().enumerate() {
            queue.set_event_idx(event_idx);
            if queue.ready() && !queue.is_valid(&self.memory) {
                let fault = DriverFault(format!("queue {number} is not in the guest's memory"));
                return self.fail(fault);
            }
        }
        self.device.activate(self.driver_features & self.device.features());
    }
}
