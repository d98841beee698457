//! What the host types at the console.
//!
//! The worker takes as much as the UART has room for. The rest stays in the pipe, so that a VM that is forked or branched
//! gets only what its guest could have seen.
//!
//! epoll reports the descriptor once and is then asked again, which is left out while there is no room. A vCPU that makes
//! room pokes the worker.

use std::os::fd::{AsFd, OwnedFd};

use forkd_devices::serial::{Console, FIFO};
use forkd_proto::control::{self, Descriptor};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;

use super::worker::Source;
use super::{Descriptors, DeviceError, Devices};

const ONCE: EventFlags = EventFlags::IN.union(EventFlags::ONESHOT);

/// The descriptor, if somebody types at the console.
pub fn take(
    wanted: &control::Devices,
    descriptors: &mut Descriptors,
) -> Result<Option<OwnedFd>, DeviceError> {
    match (wanted.console_input, wanted.console) {
        (false, _) => Ok(None),
        (true, true) => Ok(Some(descriptors.take(Descriptor::ConsoleInput)?)),
        (true, false) => Err(DeviceError::NoConsole),
    }
}

impl Devices {
    /// Has epoll watch the descriptor for the first time.
    pub(super) fn register_console_input(&self) -> Result<(), DeviceError> {
        if let Some(input) = &self.console_input {
            epoll::add(&self.epoll, input, Source::ConsoleInput.encode(), ONCE)
                .map_err(|errno| DeviceError::ConsoleInput(errno.into()))?;
        }
        Ok(())
    }

    /// Has epoll watch the descriptor again, if there is room for what it would find.
    pub(super) fn await_console_input(&self) {
        if let Some(input) = &self.console_input
            && self.with_console(|console| console.room()).is_some_and(|room| room > 0)
        {
            // A descriptor that came to its end has left epoll, and stays out.
            let _ = epoll::modify(&self.epoll, input, Source::ConsoleInput.encode(), ONCE);
        }
    }

    /// Something was typed, or nothing will be any more.
    pub(super) fn take_console_input(&self) {
        let Some(input) = &self.console_input else { return };
        let room = self.with_console(|console| console.room()).unwrap_or(0);
        if room == 0 {
            return;
        }
        let mut bytes = [0; FIFO];
        match rustix::io::read(input.as_fd(), &mut bytes[..room.min(FIFO)]) {
            Ok(typed @ 1..) => {
                // The console has more room than its UART, so nothing is lost if that has filled up in between.
                self.with_console(|console: &mut Console| console.input(&bytes[..typed]));
            }
            Err(Errno::INTR | Errno::AGAIN) => {}
            Ok(_) | Err(_) => {
                let _ = epoll::delete(&self.epoll, input);
            }
        }
        self.await_console_input();
    }
}
