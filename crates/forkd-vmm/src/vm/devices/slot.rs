//! A virtio device in its place: at an address, with a line, with a notification for each queue.
//!
//! ```text
//!   driver ──▶ NOTIFY_REGISTER ──▶ KVM, a busy queue ────────────▶ eventfd ──▶ worker
//!                                  KVM ──▶ vCPU thread, others ──▶
//! ```

use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forkd_devices::virtio::VirtioDevice;
use forkd_devices::virtio::transport::{Interrupt, MmioTransport, NOTIFY_REGISTER, WINDOW};
use kvm_ioctls::{IoEventAddress, VmFd};
use vmm_sys_util::eventfd::EventFd;

use super::line::Line;
use super::{DeviceError, event};
use crate::vm::hardware::failed;

/// The address and the interrupt of the first virtio device.
const FIRST_ADDRESS: u64 = 0xd000_0000;
const FIRST_GSI: u32 = 5;

/// The guest address of a device's registers.
pub fn address(number: u32) -> u64 {
    FIRST_ADDRESS + u64::from(number) * WINDOW
}

/// The interrupt of a device.
pub const fn gsi(number: u32) -> u32 {
    FIRST_GSI + number
}

/// Where in a device's registers an address is.
pub fn offset(number: u32, at: u64) -> Option<u64> {
    at.checked_sub(address(number)).filter(|offset| *offset < WINDOW)
}

/// A device and the descriptors that belong to its place.
#[derive(Debug)]
pub struct Slot<D> {
    number: u32,
    transport: Mutex<MmioTransport<D>>,
    notifications: Vec<EventFd>,
}

impl<D: VirtioDevice> Slot<D> {
    /// Puts a device into place; `make` is given its line.
    pub fn new(
        number: u32,
        vm: &VmFd,
        make: impl FnOnce(Arc<dyn Interrupt>) -> Result<MmioTransport<D>, DeviceError>,
    ) -> Result<Slot<D>, DeviceError> {
        let transport = make(Line::new(vm, gsi(number))?.shared())?;
        let mut notifications = Vec::new();
        for queue in (0u32..).take(transport.device().queue_sizes().len()) {
            let event = event::new()?;
            // Many kernels wait for an RCU grace period in each of these calls.
            if transport.device().is_busy(queue as usize) {
                let register = IoEventAddress::Mmio(address(number) + NOTIFY_REGISTER);
                vm.register_ioevent(&event, &register, queue).map_err(failed("KVM_IOEVENTFD"))?;
            }
            notifications.push(event);
        }
        Ok(Slot { number, transport: Mutex::new(transport), notifications })
    }

    pub fn lock(&self) -> MutexGuard<'_, MmioTransport<D>> {
        // A device whose call panicked is in some state that its driver must reset; the transport's own state is plain.
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A descriptor that a device waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchedFd {
    pub fd: RawFd,
    pub token: u32,
    pub readable: bool,
    pub writable: bool,
}

/// What a device waits for, with the descriptor while it is certainly open.
pub type OpenWatchedFd<'a> = (WatchedFd, BorrowedFd<'a>);

/// A slot of any device.
pub trait AnySlot: Sync {
    fn number(&self) -> u32;
    fn notifications(&self) -> &[EventFd];
    fn read(&self, offset: u64, data: &mut [u8]);
    fn write(&self, offset: u64, data: &[u8]);
    fn notify(&self, queue: usize);
    fn host_event(&self, token: u32);
    fn kick(&self);
    fn is_unfinished(&self) -> bool;
    /// What the driver did wrong, if the device has stopped because of it.
    fn fault(&self) -> Option<String>;
    /// Calls `update` with what the device waits for now. The descriptors are open during the call.
    fn with_wanted(&self, update: &mut dyn FnMut(&[OpenWatchedFd<'_>]));
}

impl<D: VirtioDevice> AnySlot for Slot<D> {
    fn number(&self) -> u32 {
        self.number
    }

    fn notifications(&self) -> &[EventFd] {
        &self.notifications
    }

    fn read(&self, offset: u64, data: &mut [u8]) {
        self.lock().read(offset, data);
    }

    fn write(&self, offset: u64, data: &[u8]) {
        let queue = <[u8; 4]>::try_from(data).map(u32::from_le_bytes);
        match (offset, queue) {
            // KVM would have taken it if the queue were a busy one. The work is the worker's.
            (NOTIFY_REGISTER, Ok(queue)) => {
                if let Some(notification) = self.notifications.get(queue as usize) {
                    let _ = notification.write(1);
                }
            }
            _ => self.lock().write(offset, data),
        }
    }

    fn notify(&self, queue: usize) {
        self.lock().notify(queue);
    }

    fn host_event(&self, token: u32) {
        self.lock().host_event(token);
    }

    fn kick(&self) {
        self.lock().kick();
    }

    fn is_unfinished(&self) -> bool {
        self.lock().is_unfinished()
    }

    fn fault(&self) -> Option<String> {
        self.lock().fault().map(ToString::to_string)
    }

    fn with_wanted(&self, update: &mut dyn FnMut(&[OpenWatchedFd<'_>])) {
        let transport = self.lock();
        let wanted: Vec<_> = transport
            .host_events()
            .into_iter()
            .map(|event| {
                let (token, readable, writable) = (event.token, event.readable, event.writable);
                (WatchedFd { fd: event.fd.as_raw_fd(), token, readable, writable }, event.fd)
            })
            .collect();
        update(&wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_do_not_overlap() {
        assert_eq!(offset(0, FIRST_ADDRESS), Some(0));
        assert_eq!(offset(0, FIRST_ADDRESS + WINDOW), None);
        assert_eq!(offset(1, FIRST_ADDRESS + WINDOW + 0x70), Some(0x70));
        assert_eq!(offset(1, FIRST_ADDRESS + WINDOW - 1), None);
        assert_eq!((gsi(0), gsi(3)), (5, 8));
    }
}
