//! What waits in a pool, and what is done next: decided here, done by its worker.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::demand::Demand;
use crate::plan::Slot;

/// The taker of one is about to fork, and perhaps others are: those that are missing are made when that is over.
const QUIET: Duration = Duration::from_millis(250);
/// A used network does not wait longer, even if it delays a fork: its VM may not have ended.
const LONGEST_USED: Duration = Duration::from_secs(2);
/// Networks that are removed at once.
const REMOVED_AT_ONCE: usize = 128;
/// Networks that are reset between two looks at what else there is to do.
const RESET_AT_ONCE: usize = 16;

/// Of networks, or of what stands for them in tests.
#[derive(Debug)]
pub struct Queue<N> {
    /// The one that was free for the longest time is taken first.
    pub free: VecDeque<Slot>,
    pub ready: VecDeque<N>,
    /// Their sandboxes have ended. They can be reset.
    pub used: VecDeque<N>,
    /// Since when there are any.
    used_since: Option<Instant>,
    /// Networks and slots that are to be removed.
    pub doomed: VecDeque<Doomed<N>>,
    pub demand: Demand,
    pub last_taken: Option<Instant>,
    /// Nothing is made or reset before.
    pub resting_until: Option<Instant>,
    /// How many have asked not to be disturbed.
    pub holds: usize,
}

/// What is to be removed.
#[derive(Debug)]
pub enum Doomed<N> {
    Network(Box<N>),
    /// Something may be there.
    Slot(Slot),
}

/// What the worker does next.
#[derive(Debug)]
pub enum Work<N> {
    Make(Slot),
    Reset(Vec<N>),
    Remove(Vec<Doomed<N>>),
    /// There will be something to do then.
    Wait(Duration),
    Nothing,
}

impl<N> Queue<N> {
    pub fn new(free: VecDeque<Slot>, doomed: VecDeque<Doomed<N>>) -> Queue<N> {
        Queue {
            free,
            ready: VecDeque::new(),
            used: VecDeque::new(),
            used_since: None,
            doomed,
            demand: Demand::default(),
            last_taken: None,
            resting_until: None,
            holds: 0,
        }
    }

    /// A network that waits is needed sooner than a slot, and resetting one takes less CPU than making one.
    pub fn next(&mut self, least: usize, now: Instant) -> Work<N> {
        self.doom_surplus(least, now);
        let wait = self.wait(now);
        if wait == Some(Duration::ZERO) {
            let count = self.used.len().min(RESET_AT_ONCE);
            if count > 0 {
                self.used_since = Some(now);
                return Work::Reset(self.used.drain(..count).collect());
            }
            if self.is_short(least, now)
                && let Some(slot) = self.free.pop_front()
            {
                return Work::Make(slot);
            }
        }
        if !self.doomed.is_empty() {
            let count = self.doomed.len().min(REMOVED_AT_ONCE);
            return Work::Remove(self.doomed.drain(..count).collect());
        }
        match wait {
            Some(wait) if !self.used.is_empty() || self.is_short(least, now) => Work::Wait(wait),
            _ => Work::Nothing,
        }
    }

    /// Takes a network back that can be reset.
    pub fn give_back(&mut self, network: N, now: Instant) {
        if self.used.is_empty() {
            self.used_since = Some(now);
        }
        self.used.push_back(network);
    }

    /// Whether nothing is left to do.
    pub fn is_settled(&self, least: usize, now: Instant) -> bool {
        self.used.is_empty() && self.doomed.is_empty() && !self.is_short(least, now)
    }

    /// Whether one is to be made.
    fn is_short(&self, least: usize, now: Instant) -> bool {
        self.ready.len() < self.demand.wanted(least, now) && !self.free.is_empty()
    }

    /// Networks beyond those that may wait are removed: used ones rather than those that are ready.
    fn doom_surplus(&mut self, least: usize, now: Instant) {
        let kept = self.demand.kept(least, now);
        let surplus = (self.ready.len() + self.used.len()).saturating_sub(kept);
        for _ in 0..surplus {
            let network = self.used.pop_back().or_else(|| self.ready.pop_back());
            self.doomed.extend(network.map(|network| Doomed::Network(Box::new(network))));
        }
    }

    /// How long forks must not be delayed. `None` while one holds the pool.
    fn wait(&self, now: Instant) -> Option<Duration> {
        let left = |until: Instant| until.saturating_duration_since(now);
        let quiet = self.last_taken.map(|taken| taken + QUIET).max(self.resting_until);
        let quiet = (self.holds == 0).then(|| quiet.map_or(Duration::ZERO, left));
        let used = self.used_since.filter(|_| !self.used.is_empty());
        let used = used.map(|since| left(since + LONGEST_USED));
        quiet.into_iter().chain(used).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_waits_for_disturbs_nobody() {
        let now = Instant::now();
        let slot = Slot::sandboxes().next();
        let mut queue: Queue<u32> = Queue::new(slot.into_iter().collect(), VecDeque::new());
        assert!(matches!(queue.next(0, now), Work::Nothing));
        assert!(queue.is_settled(0, now) && !queue.is_settled(1, now));
        queue.last_taken = Some(now);
        assert!(matches!(queue.next(1, now), Work::Wait(QUIET)));
        queue.resting_until = Some(now + 4 * QUIET);
        assert!(matches!(queue.next(1, now + QUIET), Work::Wait(time) if time == 3 * QUIET));
        // What is to go is removed meanwhile.
        queue.doomed.extend(Slot::sandboxes().nth(1).map(Doomed::Slot));
        assert!(!queue.is_settled(0, now));
        assert!(matches!(queue.next(1, now + QUIET), Work::Remove(one) if one.len() == 1));
        queue.holds = 1;
        assert!(matches!(queue.next(1, now + 4 * QUIET), Work::Nothing));
        queue.holds = 0;
        assert!(matches!(queue.next(1, now + 4 * QUIET), Work::Make(made) if Some(made) == slot));
        assert!(matches!(queue.next(1, now + 4 * QUIET), Work::Nothing), "no slot is left");
    }

    #[test]
    fn used_ones_are_reset_before_others_are_made() {
        let now = Instant::now();
        let mut queue = Queue::new(Slot::sandboxes().collect(), VecDeque::new());
        (0..20).for_each(|network| queue.give_back(network, now));
        let Work::Reset(first) = queue.next(30, now) else { panic!("{queue:?}") };
        assert_eq!(first, (0..16).collect::<Vec<u32>>(), "a few at a time");
        queue.ready.extend(first);
        queue.holds = 1;
        assert!(matches!(queue.next(30, now), Work::Wait(LONGEST_USED)), "not while something is created");
        assert!(!queue.is_settled(30, now));
        queue.holds = 0;
        queue.last_taken = Some(now);
        assert!(matches!(queue.next(30, now), Work::Wait(QUIET)));
        let now = now + QUIET;
        assert!(matches!(queue.next(30, now), Work::Reset(rest) if rest.len() == 4));
        assert!(matches!(queue.next(30, now), Work::Make(_)));
    }

    #[test]
    fn used_ones_do_not_wait_for_ever() {
        let now = Instant::now();
        let mut queue = Queue::new(Slot::sandboxes().collect(), VecDeque::new());
        queue.holds = 1;
        assert!(matches!(queue.next(4, now), Work::Nothing));
        queue.give_back(1, now);
        queue.give_back(2, now + LONGEST_USED / 2);
        let now = now + LONGEST_USED;
        assert!(matches!(queue.next(4, now - QUIET), Work::Wait(QUIET)));
        assert!(matches!(queue.next(4, now), Work::Reset(used) if used == [1, 2]));
        assert!(matches!(queue.next(4, now), Work::Nothing), "nothing is made meanwhile");
    }

    #[test]
    fn what_nobody_will_want_is_removed() {
        let now = Instant::now();
        let mut queue = Queue::new(VecDeque::new(), VecDeque::new());
        queue.ready.extend(0..4);
        queue.used.extend(4..10);
        let Work::Remove(doomed) = queue.next(4, now) else { panic!("{queue:?}") };
        assert_eq!(doomed.len(), 6, "used ones first: {doomed:?}");
        assert_eq!((queue.ready.len(), queue.used.len()), (4, 0));
        // Those of a burst come back and are kept, beside those that were made meanwhile.
        (0..6).for_each(|_| queue.demand.taken(now));
        queue.ready.extend(4..6);
        queue.used.extend(6..12);
        assert!(matches!(queue.next(4, now), Work::Reset(reset) if reset.len() == 6));
        queue.ready.extend(6..12);
        assert!(matches!(queue.next(4, now), Work::Nothing));
        // Until the burst is forgotten.
        let later = now + Duration::from_secs(24 * 3600);
        assert!(matches!(queue.next(4, later), Work::Remove(doomed) if doomed.len() == 8));
        assert!(queue.ready.iter().eq(&[0, 1, 2, 3]));
    }
}
