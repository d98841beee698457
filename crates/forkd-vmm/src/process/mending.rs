//! After a branch: the huge pages of the source VM are collapsed again, so that its next branch costs no more than its first.
//! The thread that waits for requests does it, a little at a time, when it is idle: so no other thread has to be stopped
//! before the process is forked.

use std::time::{Duration, Instant};

use forkd_memory::{GuestRam, Mender, Pagemap};

/// The time between two rounds while the guest writes; it doubles while there is nothing new to mend.
const SHORTEST: Duration = Duration::from_millis(20);
/// A guest that has written nothing more for this long is left alone until its next branch.
const LONGEST: Duration = Duration::from_secs(10);

pub struct Mending {
    mender: Mender,
    /// Huge pages that the last round has left.
    left: usize,
    delay: Duration,
    due: Instant,
}

impl Mending {
    pub fn new(ram: &GuestRam, pagemap: Pagemap) -> Mending {
        let mender = ram.mender(pagemap);
        Mending { mender, left: usize::MAX, delay: SHORTEST, due: Instant::now() + SHORTEST }
    }

    /// The time until the next step.
    pub fn wait(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Does what is due, for a few milliseconds at most. Returns itself unless that was the last of it.
    pub fn step(mut self) -> Option<Mending> {
        let Some(left) = self.mender.step() else { return Some(self) };
        self.delay = if left < self.left { SHORTEST } else { self.delay * 2 };
        self.left = left;
        self.due = Instant::now() + self.delay;
        (left > 0 && self.delay <= LONGEST).then_some(self)
    }
}
