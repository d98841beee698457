//! Events of a VM, on their way from the thread that saw it to the one that tells the host.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forkd_proto::control::Event;
use rustix::event::EventfdFlags;

#[derive(Debug)]
pub struct Notices {
    waiting: Mutex<Waiting>,
    /// Readable while something waits.
    ready: OwnedFd,
}

#[derive(Debug, Default)]
struct Waiting {
    /// In the order in which it happened. No guest makes this long: every kind is bounded by the code that adds it.
    events: Vec<Event>,
    panicked: bool,
}

impl Notices {
    pub fn new() -> io::Result<Notices> {
        let ready = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Notices { waiting: Mutex::default(), ready })
    }

    /// A descriptor of its own that is readable while something waits.
    pub fn ready(&self) -> io::Result<OwnedFd> {
        self.ready.try_clone()
    }

    pub fn add(&self, event: Event) {
        self.lock().events.push(event);
        // The counter does not overflow, so nothing can fail.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    /// The guest says that its kernel has panicked, which is news once.
    pub fn add_panic(&self) {
        if !std::mem::replace(&mut self.lock().panicked, true) {
            self.add(Event::Panicked);
        }
    }

    /// Takes what waits.
    pub fn take(&self) -> Vec<Event> {
        // Before the list is taken: what is added later makes it readable again.
        let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        std::mem::take(&mut self.lock().events)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // A panic while holding the lock leaves plain data in order.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn is_ready(ready: &OwnedFd) -> bool {
        let mut events = [PollFd::new(ready, PollFlags::IN)];
        poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn notices_wait_in_order_and_a_panic_is_one() {
        let notices = Notices::new().unwrap();
        let ready = notices.ready().unwrap();
        assert!(!is_ready(&ready));
        assert_eq!(notices.take(), []);

        let full = Event::OutOfDisk { disk: 0, limit_bytes: 4096 };
        notices.add(full.clone());
        notices.add_panic();
        notices.add_panic();
        notices.add(full.clone());
        assert!(is_ready(&ready));
        assert_eq!(notices.take(), [full.clone(), Event::Panicked, full]);
        assert!(!is_ready(&ready));

        notices.add_panic();
        assert!(!is_ready(&ready));
        assert_eq!(notices.take(), []);
    }
}
