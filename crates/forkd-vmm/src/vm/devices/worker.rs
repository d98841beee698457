//! The thread that serves queues and the host's descriptors.

use std::collections::HashMap;
use std::io;
use std::os::fd::BorrowedFd;

use forkd_proto::control::Event;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use super::slot::{AnySlot, WatchedFd};
use super::{DeviceError, Devices, event};
use crate::vm::notices::Notices;

/// Events taken at a time.
const BATCH: usize = 32;

/// What an event is about, as the number that epoll keeps with it: kind, device, and queue or token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// The VM is to pause.
    Stop,
    /// A driver has changed a device, or the console has room for input again.
    Poke,
    Queue {
        slot: u32,
        queue: u32,
    },
    Host {
        slot: u32,
        token: u32,
    },
    SerialInput,
}

impl Source {
    pub(super) fn encode(self) -> EventData {
        let (kind, slot, value) = match self {
            Source::Stop => (0u64, 0, 0),
            Source::Poke => (1, 0, 0),
            Source::Queue { slot, queue } => (2, slot, queue),
            Source::Host { slot, token } => (3, slot, token),
            Source::SerialInput => (4, 0, 0),
        };
        EventData::new_u64(kind << 56 | u64::from(slot & 0xff) << 32 | u64::from(value))
    }

    fn decode(data: EventData) -> Source {
        let [kind, _, _, slot, value @ ..] = data.u64().to_be_bytes();
        let (slot, value) = (u32::from(slot), u32::from_be_bytes(value));
        match kind {
            0 => Source::Stop,
            1 => Source::Poke,
            2 => Source::Queue { slot, queue: value },
            3 => Source::Host { slot, token: value },
            _ => Source::SerialInput,
        }
    }
}

/// What the worker remembers between two runs.
#[derive(Debug, Default)]
pub struct Worker {
    /// It has run before.
    has_begun: bool,
    /// Which descriptors of the host epoll watches for which device.
    watched: HashMap<(u32, u32), WatchedFd>,
}

impl Devices {
    /// Has epoll watch what never changes.
    pub(super) fn register(&self) -> Result<(), DeviceError> {
        self.watch(event::as_fd(&self.poke), Source::Poke)?;
        self.register_serial_input()?;
        for slot in self.slots() {
            for (queue, notification) in (0u32..).zip(slot.notifications()) {
                self.watch(event::as_fd(notification), Source::Queue { slot: slot.number(), queue })?;
            }
        }
        Ok(())
    }

    /// Has epoll watch the order to pause.
    pub fn register_stop(&self, stop: BorrowedFd<'_>) -> Result<(), DeviceError> {
        self.watch(stop, Source::Stop)
    }

    fn watch(&self, fd: BorrowedFd<'_>, source: Source) -> Result<(), DeviceError> {
        Ok(epoll::add(&self.epoll, fd, source.encode(), EventFlags::IN).map_err(io::Error::from)?)
    }

    /// Serves the devices until the VM is to pause, or until a driver has broken the rules: then what it did is said, and the VM
    /// is of no use any more. The rules of virtio would have the device wait for a reset, but no driver that is not out to break
    /// something comes that far, and its owner should know.
    pub fn serve(&self, worker: &mut Worker, notices: &Notices) -> Option<String> {
        if !std::mem::replace(&mut worker.has_begun, true) {
            // What was on its way when the state was taken that the VM was made of.
            self.slots().for_each(AnySlot::kick);
            if let Some(fault) = self.fault() {
                return Some(fault);
            }
        }
        self.notice_full_disks(notices);
        for slot in self.slots() {
            self.refresh(worker, slot);
        }
        loop {
            let unfinished = self.slots().any(AnySlot::is_unfinished);
            let mut events = Vec::with_capacity(BATCH);
            let limit = unfinished.then_some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 });
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), limit) {
                Ok(_) | Err(Errno::INTR) => {}
                // Only a bug closes the descriptor. A thread that spins on it would only waste CPU time.
                Err(_) => return None,
            }
            let mut stop = false;
            for event in &events {
                match Source::decode(event.data) {
                    Source::Stop => stop = true,
                    Source::Poke => {
                        let _ = self.poke.read();
                        self.await_serial_input();
                    }
                    Source::Queue { slot, queue } => self.queue_notified(slot, queue),
                    Source::Host { slot, token } => {
                        self.slot(slot).iter().for_each(|slot| slot.host_event(token))
                    }
                    Source::SerialInput => self.take_serial_input(),
                }
            }
            // Also before a pause, in which a disk may get another top layer.
            self.notice_full_disks(notices);
            let fault = self.fault();
            if stop || fault.is_some() {
                return fault;
            }
            for slot in self.slots() {
                if slot.is_unfinished() {
                    slot.kick();
                }
                self.refresh(worker, slot);
            }
        }
    }

    fn notice_full_disks(&self, notices: &Notices) {
        for (disk, slot) in (0..).zip(&self.disks) {
            if let Some(limit_bytes) = slot.lock().device_mut().take_out_of_space() {
                notices.add(Event::OutOfDisk { disk, limit_bytes });
            }
        }
    }

    fn fault(&self) -> Option<String> {
        self.slots().find_map(|slot| {
            let fault = slot.fault()?;
            Some(format!("the guest's driver of {}: {fault}", super::name(slot.number())))
        })
    }

    fn slot(&self, number: u32) -> Option<&dyn AnySlot> {
        self.slots().find(|slot| slot.number() == number)
    }

    fn queue_notified(&self, number: u32, queue: u32) {
        let Some(slot) = self.slot(number) else { return };
        let queue = queue as usize;
        if let Some(notification) = slot.notifications().get(queue) {
            // Taken before the queue is looked at: what comes later is a notification of its own.
            let _ = notification.read();
            slot.notify(queue);
        }
    }

    /// Has epoll watch what a device waits for now.
    fn refresh(&self, worker: &mut Worker, slot: &dyn AnySlot) {
        let number = slot.number();
        slot.with_wanted(&mut |wanted| {
            for (now, fd) in wanted {
                if worker.watched.get(&(number, now.token)) == Some(now) {
                    continue;
                }
                let mut flags = EventFlags::empty();
                flags.set(EventFlags::IN, now.readable);
                flags.set(EventFlags::OUT, now.writable);
                let data = Source::Host { slot: number, token: now.token }.encode();
                // A descriptor that was closed was removed from epoll by the kernel, and another may have its number now.
                let changed = match epoll::modify(&self.epoll, fd, data, flags) {
                    Err(Errno::NOENT) => epoll::add(&self.epoll, fd, data, flags),
                    changed => changed,
                };
                if changed.is_ok() {
                    worker.watched.insert((number, now.token), *now);
                }
            }
            worker.watched.retain(|(owner, token), before| {
                let still = *owner != number || wanted.iter().any(|(now, _)| now.token == *token);
                if !still && !wanted.iter().any(|(now, _)| now.fd == before.fd) {
                    self.unwatch(before);
                }
                still
            });
        });
    }

    /// A device that waits for nothing on a descriptor keeps it open, and epoll would report its errors for ever.
    fn unwatch(&self, before: &WatchedFd) {
        if let Some(fd) = event::still_open(before.fd) {
            // It may have been closed, and with that has left epoll.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_survive_epoll() {
        for source in [
            Source::Stop,
            Source::Poke,
            Source::Queue { slot: 3, queue: 2 },
            Source::Host { slot: 2, token: u32::MAX },
            Source::SerialInput,
        ] {
            assert_eq!(Source::decode(source.encode()), source);
        }
    }
}
