//! What the host types at the console.
//!
//! The worker takes as much as the UART has room for. The rest stays in the pipe, so that a VM that is forked or branched
//! gets only what its guest could have seen.
//!
//! epoll reports the descriptor once and is then asked again, which is left out while there is no room. A vCPU that makes
//! room pokes the worker.

use std::os::fd::{AsFd, OwnedFd};

use forkd_devices::serial::{FIFO, SerialPort};
use forkd_proto::control::{self, Descriptor};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use super::worker::Source;
use super::{Descriptors, DeviceError, Devices};

const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// The descriptor, if the console has input.
pub fn take(
    wanted: &control::Devices,
    descriptors: &mut Descriptors,
) -> Result<Option<OwnedFd>, DeviceError> {
    match (wanted.serial_input, wanted.serial) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(descriptors.take(Descriptor::SerialInput)?)),
        (true, false) => Err(DeviceError::NoSerial),
    }
}

impl Devices {
    /// Has epoll watch the descriptor for the first time.
    pub(super) fn register_serial_input(&self) -> Result<(), DeviceError> {
        if let Some(input) = &self.serial_input {
            epoll::add(&self.epoll, input, Source::SerialInput.encode(), ONCE)
                .map_err(|errno| DeviceError::SerialInput(errno.into()))?;
        }
        Ok(())
    }

    /// Has epoll watch the descriptor again, if there is room for what it would find.
    pub(super) fn await_serial_input(&self) {
        if let Some(input) = &self.serial_input
            && self.with_serial(|serial| serial.room()).is_some_and(|room| room > 0)
        {
            // A descriptor that came to its end has left epoll, and stays out.
            let _ = epoll::modify(&self.epoll, input, Source::SerialInput.encode(), ONCE);
        }
    }

    /// Something was typed, or nothing will be any more.
    pub(super) fn take_serial_input(&self) {
        let Some(input) = &self.serial_input else { return };
        let room = self.with_serial(|serial| serial.room()).unwrap_or(0);
        if room == 0 {
            return;
        }
        let mut bytes = [0; FIFO];
        match rustix::io::read(input.as_fd(), &mut bytes[..room.min(FIFO)]) {
            Ok(typed @ 1..) => {
                // The console has more room than its UART, so nothing is lost if that has filled up in between.
                self.with_serial(|serial: &mut SerialPort| serial.input(&bytes[..typed]));
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(_) | Err(_) => {
                let _ = epoll::delete(&self.epoll, input);
            }
        }
        self.await_serial_input();
    }
}
