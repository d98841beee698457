//! Numbers to choose with, the same for the same seed.

use std::time::{SystemTime, UNIX_EPOCH};

use forkd_tests::engine::process::Failure;

/// SplitMix64.
#[derive(Debug)]
pub struct Random {
    pub seed: u64,
    state: u64,
}

impl Random {
    /// With the seed in `FORKD_SEED`, or another one each time; a test that fails says which.
    pub fn seeded() -> Result<Random, Failure> {
        let seed = match std::env::var("FORKD_SEED") {
            Ok(seed) => seed.parse()?,
            Err(_) => u64::from(SystemTime::now().duration_since(UNIX_EPOCH)?.subsec_nanos()),
        };
        Ok(Random { seed, state: seed })
    }

    /// One that goes its own way.
    pub fn another(&mut self) -> Random {
        let seed = self.next();
        Random { seed, state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub fn choose<T>(&mut self, mut from: Vec<T>) -> Option<T> {
        let count = u64::try_from(from.len()).ok().filter(|count| *count > 0)?;
        let index = usize::try_from(self.below(count)).ok()?;
        Some(from.swap_remove(index))
    }
}
