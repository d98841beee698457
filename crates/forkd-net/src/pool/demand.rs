//! How many networks are to wait for sandboxes: as many as were taken at once of late.

use std::time::{Duration, Instant};

/// Networks that are taken within this time of each other are taken at once.
const BURST: Duration = Duration::from_secs(10);
/// How long it is remembered how many were. After that it is half as many, and half of that after the same time again.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Each that waits costs the kernel about a megabyte. A larger minimum asks for more.
const MOST: usize = 128;

/// How many networks were taken at once of late.
#[derive(Debug, Default)]
pub struct Demand {
    /// In the burst that is going on, or was the last, without those that were given back already.
    burst: usize,
    last: Option<Instant>,
    /// In the largest one, and when that was.
    most: usize,
    when: Option<Instant>,
}

impl Demand {
    pub fn taken(&mut self, now: Instant) {
        let goes_on = self.last.is_some_and(|last| now.duration_since(last) < BURST);
        self.burst = if goes_on { self.burst + 1 } else { 1 };
        self.last = Some(now);
        let counted = self.burst.min(MOST);
        if counted >= self.recent(now) {
            (self.most, self.when) = (counted, Some(now));
        }
    }

    pub fn given_back(&mut self) {
        self.burst = self.burst.saturating_sub(1);
    }

    /// How many networks are to wait, which are never fewer than `least`.
    pub fn wanted(&self, least: usize, now: Instant) -> usize {
        self.recent(now).max(least)
    }

    /// How many may wait: with those, also as many as come back from the last sandboxes. So a host whose sandboxes come and go
    /// makes none, and removes none.
    pub fn kept(&self, least: usize, now: Instant) -> usize {
        self.wanted(least, now) + self.recent(now)
    }

    fn recent(&self, now: Instant) -> usize {
        let Some(when) = self.when else { return 0 };
        let periods = now.saturating_duration_since(when).as_secs() / REMEMBERED.as_secs();
        u32::try_from(periods).ok().and_then(|halvings| self.most.checked_shr(halvings)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(demand: &mut Demand, count: usize, now: Instant) {
        (0..count).for_each(|_| demand.taken(now));
    }

    #[test]
    fn as_many_wait_as_were_taken_at_once_of_late() {
        let now = Instant::now();
        let mut demand = Demand::default();
        assert_eq!(demand.wanted(4, now), 4);
        taken(&mut demand, 3, now);
        assert_eq!(demand.wanted(4, now), 4, "the least is the least");
        taken(&mut demand, 100, now);
        assert_eq!(demand.wanted(4, now), 103);
        taken(&mut demand, 100, now);
        assert_eq!(demand.wanted(4, now), MOST, "there is a ceiling");
        assert_eq!(demand.wanted(1000, now), 1000, "but not for who asks for more");
        assert_eq!(demand.kept(4, now), 2 * MOST);
        assert_eq!(demand.kept(1000, now), 1000 + MOST);
        assert_eq!(Demand::default().kept(4, now), 4);
    }

    #[test]
    fn bursts_are_apart() {
        let now = Instant::now();
        let mut demand = Demand::default();
        for round in 0..5 {
            taken(&mut demand, 7, now + 2 * BURST * round);
        }
        assert_eq!(demand.wanted(0, now + 10 * BURST), 7);
    }

    #[test]
    fn those_that_are_given_back_are_taken_again() {
        let now = Instant::now();
        let mut demand = Demand::default();
        taken(&mut demand, 7, now);
        for _ in 0..20 {
            demand.given_back();
            demand.taken(now);
        }
        assert_eq!(demand.wanted(4, now), 7);
    }

    #[test]
    fn what_was_wanted_is_forgotten_by_halves() {
        let now = Instant::now();
        let mut demand = Demand::default();
        taken(&mut demand, 100, now);
        let after = |periods: u32| now + REMEMBERED * periods;
        // A smaller burst changes nothing as long as more is remembered.
        taken(&mut demand, 7, now + REMEMBERED / 2);
        let waiting: Vec<usize> = (0..8).map(|periods| demand.wanted(4, after(periods))).collect();
        assert_eq!(waiting, [100, 50, 25, 12, 6, 4, 4, 4]);
        assert_eq!(demand.wanted(0, after(200)), 0);
        taken(&mut demand, 7, after(4));
        assert_eq!(demand.wanted(4, after(4)), 7, "and then it does");
    }
}
