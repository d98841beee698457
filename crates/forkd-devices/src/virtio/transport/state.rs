//! The registers and queues of a transport in saved state.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use virtio_bindings::virtio_mmio::{VIRTIO_MMIO_INT_CONFIG, VIRTIO_MMIO_INT_VRING};
use virtio_bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestMemoryMmap;

use super::status::Status;
use super::{DriverFault, Interrupt, MmioTransport, QueueSizeError, VirtioDevice};

/// The longest text of a fault in saved state.
const MAX_FAULT: usize = 1024;

/// A transport without its device, which is saved separately. The rings are in guest memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportState {
    pub status: u32,
    pub device_features_select: u32,
    pub driver_features_select: u32,
    pub driver_features: u64,
    pub queue_select: u32,
    pub interrupt_status: u32,
    pub config_generation: u32,
    /// What the driver did wrong, if the device waits for a reset.
    pub fault: Option<String>,
    pub queues: Vec<QueueState>,
}

/// A queue as the driver set it up, and how far it was worked through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    pub max_size: u16,
    pub size: u16,
    pub ready: bool,
    pub event_idx: bool,
    pub next_avail: u16,
    pub next_used: u16,
    pub desc_table: u64,
    pub avail_ring: u64,
    pub used_ring: u64,
}

impl From<&Queue> for QueueState {
    fn from(queue: &Queue) -> QueueState {
        QueueState {
            max_size: queue.max_size(),
            size: queue.size(),
            ready: queue.ready(),
            event_idx: queue.event_idx_enabled(),
            next_avail: queue.next_avail(),
            next_used: queue.next_used(),
            desc_table: queue.desc_table(),
            avail_ring: queue.avail_ring(),
            used_ring: queue.used_ring(),
        }
    }
}

impl TryFrom<&QueueState> for Queue {
    type Error = virtio_queue::Error;

    fn try_from(state: &QueueState) -> Result<Queue, virtio_queue::Error> {
        Queue::try_from(virtio_queue::QueueState {
            max_size: state.max_size,
            next_avail: state.next_avail,
            next_used: state.next_used,
            event_idx_enabled: state.event_idx,
            size: state.size,
            ready: state.ready,
            desc_table: state.desc_table,
            avail_ring: state.avail_ring,
            used_ring: state.used_ring,
        })
    }
}

/// The saved state is not one that a transport can be in.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    #[error(transparent)]
    QueueSize(#[from] QueueSizeError),
    #[error("invalid device status {0:#x}")]
    Status(u32),
    #[error("the driver has accepted the features {found:#x} of {offered:#x}")]
    Features { found: u64, offered: u64 },
    #[error("invalid interrupt status {0:#x}")]
    InterruptStatus(u32),
    #[error("the status and the recorded fault of the driver do not agree")]
    Fault,
    #[error("{found} queues; the device has {expected}")]
    QueueCount { found: usize, expected: usize },
    #[error("queue {queue} has a maximum size of {found}; {expected} is expected")]
    QueueMaximum { queue: usize, found: u16, expected: u16 },
    #[error("queue {queue} cannot be set up")]
    Queue { queue: usize, source: virtio_queue::Error },
    #[error("queue {queue} is ready before the driver has accepted features")]
    ReadyTooEarly { queue: usize },
    #[error("queue {queue} and the accepted features do not agree on event indices")]
    EventIdx { queue: usize },
    #[error("queue {queue} is not in the guest's memory")]
    OutsideMemory { queue: usize },
    #[error("queue {queue} has taken {taken} chains and returned {returned}; saved state has none in flight")]
    Positions { queue: usize, taken: u16, returned: u16 },
}

impl<D: VirtioDevice> MmioTransport<D> {
    pub fn state(&self) -> TransportState {
        let fault = |DriverFault(text): &DriverFault| {
            let end = text.floor_char_boundary(MAX_FAULT);
            text[..end].to_owned()
        };
        TransportState {
            status: self.status.bits(),
            device_features_select: self.device_features_select,
            driver_features_select: self.driver_features_select,
            driver_features: self.driver_features,
            queue_select: self.queue_select,
            interrupt_status: self.interrupt_status,
            config_generation: self.config_generation,
            fault: self.fault.as_ref().map(fault),
            queues: self.queues.iter().map(QueueState::from).collect(),
        }
    }

    /// Makes a transport from saved state, which is untrusted, and a device that was made from its own. When everything is
    /// in place again, [`MmioTransport::kick`] takes up what was on its way.
    pub fn restore(
        device: D,
        memory: GuestMemoryMmap,
        interrupt: Arc<dyn Interrupt>,
        state: &TransportState,
    ) -> Result<Self, RestoreError> {
        let mut transport = MmioTransport::new(device, memory, interrupt)?;
        let status = Status::from_bits(state.status).ok_or(RestoreError::Status(state.status))?;
        if state.interrupt_status & !(VIRTIO_MMIO_INT_VRING | VIRTIO_MMIO_INT_CONFIG) != 0 {
            return Err(RestoreError::InterruptStatus(state.interrupt_status));
        }
        let too_long = state.fault.as_ref().is_some_and(|text| text.len() > MAX_FAULT);
        if status.needs_reset() != state.fault.is_some() || too_long {
            return Err(RestoreError::Fault);
        }
        transport.status = status;
        transport.device_features_select = state.device_features_select;
        transport.driver_features_select = state.driver_features_select;
        transport.driver_features = state.driver_features;
        transport.queue_select = state.queue_select;
        transport.interrupt_status = state.interrupt_status;
        transport.config_generation = state.config_generation;
        transport.fault = state.fault.clone().map(DriverFault);
        if status.has_features_ok() && !transport.features_are_good() {
            return Err(RestoreError::Features {
                found: state.driver_features,
                offered: transport.offered_features(),
            });
        }
        transport.restore_queues(&state.queues)?;
        if transport.is_running() {
            let features = transport.driver_features & transport.device.features();
            transport.device.activate(features);
        }
        Ok(transport)
    }

    fn restore_queues(&mut self, states: &[QueueState]) -> Result<(), RestoreError> {
        let (found, expected) = (states.len(), self.queues.len());
        if found != expected {
            return Err(RestoreError::QueueCount { found, expected });
        }
        // A transport that failed when its driver said DRIVER_OK has queues that were never good, and never uses them.
        let used = self.status.is_running();
        let event_idx = self.driver_features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        for (number, (queue, state)) in self.queues.iter_mut().zip(states).enumerate() {
            let (found, expected) = (state.max_size, queue.max_size());
            if found != expected {
                return Err(RestoreError::QueueMaximum { queue: number, found, expected });
            }
            *queue =
                Queue::try_from(state).map_err(|source| RestoreError::Queue { queue: number, source })?;
            if queue.ready() && !self.status.has_features_ok() {
                return Err(RestoreError::ReadyTooEarly { queue: number });
            }
            if used && state.event_idx != event_idx {
                return Err(RestoreError::EventIdx { queue: number });
            }
            if used && queue.ready() && !queue.is_valid(&self.memory) {
                return Err(RestoreError::OutsideMemory { queue: number });
            }
            // Nothing is in flight between two calls of a device. One that failed may have stopped in the middle of a call,
            // and its queues are not used again before they are reset.
            if state.next_avail != state.next_used && !self.status.needs_reset() {
                let (taken, returned) = (state.next_avail, state.next_used);
                return Err(RestoreError::Positions { queue: number, taken, returned });
            }
        }
        Ok(())
    }
}
