//! Gives memory back after a crowd.
//!
//! A thousand streams at once take some 18 MiB. The C library keeps freed memory for the next time; but a guest that was busy
//! once and is forked later would carry it around in every child. No timer runs for this: connections are counted, and
//! when few are left of many, what is free goes back to the kernel, then and once more a little later.
#![expect(unsafe_code, reason = "the C library's allocator is told to return free memory")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Fewer than this are no crowd.
const CROWD: usize = 32;
/// The part that must be left for the crowd to be over.
const LEFT: usize = 4;
/// When those are gone that were still leaving.
pub const AFTERWARDS: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub struct Crowd {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Crowd {
    pub fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    /// Says whether a crowd has gone with this one.
    pub fn leave(&self) -> bool {
        let now = self.now.fetch_sub(1, Ordering::Relaxed).saturating_sub(1);
        let most = self.most.load(Ordering::Relaxed);
        let over = most >= CROWD && now <= most / LEFT;
        if over {
            self.most.store(now, Ordering::Relaxed);
        }
        over
    }
}

pub fn give_back() {
    // SAFETY: it takes the allocator's own locks and touches only memory that is free.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_is_over_when_a_quarter_is_left() {
        let crowd = Crowd::default();
        let mut over = Vec::new();
        for _ in 0..100 {
            crowd.enter();
        }
        for left in (0..100).rev() {
            if crowd.leave() {
                over.push(left);
            }
        }
        assert_eq!(over, [25]);
        crowd.enter();
        assert!(!crowd.leave());
    }
}
