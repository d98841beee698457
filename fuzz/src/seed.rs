//! Seeds: scripts of a good driver, in short.

use std::path::Path;

use crate::driver::{EVENT_INDEX, SET_UP, Subject, drive};
use crate::script::Step;

/// Flags of descriptors.
const NEXT: u8 = 1;
pub const WRITE: u8 = 2;

pub struct Seed(Vec<u8>);

impl Seed {
    /// A device that is running, with these bits in its setup.
    pub fn running(setup: u8) -> Seed {
        Seed(vec![SET_UP | EVENT_INDEX | setup, 0])
    }

    fn step(&mut self, step: Step) -> &mut Seed {
        step.encode(&mut self.0);
        self
    }

    pub fn memory(&mut self, address: u32, bytes: &[u8]) -> &mut Seed {
        self.step(Step::Memory { address, bytes: bytes.to_vec() })
    }

    /// Offers a chain of buffers (address, length, flags) that begins with descriptor `first`.
    pub fn chain(&mut self, queue: u8, first: u8, buffers: &[(u32, u32, u8)]) -> &mut Seed {
        let last = buffers.len() - 1;
        for (place, (index, &(address, length, flags))) in (first..).zip(buffers.iter().enumerate()) {
            let flags = if index < last { flags | NEXT } else { flags };
            self.step(Step::Descriptor { queue, index: place, address, length, flags, next: place + 1 });
        }
        self.step(Step::Offer { queue, head: first.into() })
    }

    pub fn notify(&mut self, queue: u8) -> &mut Seed {
        self.step(Step::Notify { queue })
    }

    pub fn ready(&mut self, event: u8) -> &mut Seed {
        self.step(Step::Ready { event })
    }

    pub fn host(&mut self, action: u8, bytes: &[u8]) -> &mut Seed {
        self.step(Step::Host { action, bytes: bytes.to_vec() })
    }

    pub fn restore(&mut self) -> &mut Seed {
        self.step(Step::Restore)
    }

    /// Keeps the seed, runs it and returns how many chains came back from each queue.
    pub fn check<S: Subject>(&self, target: &str, name: &str) -> Vec<u16> {
        keep(target, name, &self.0);
        let outcome = drive::<S>(&self.0);
        assert_eq!(outcome.fault, None);
        outcome.used
    }
}

/// Compares a seed with its file, or writes the file if FORKD_WRITE_SEEDS is set.
pub fn keep(target: &str, name: &str, script: &[u8]) {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
        std::fs::create_dir_all(&seeds).unwrap();
        std::fs::write(seeds.join(name), script).unwrap();
    }
    assert!(std::fs::read(seeds.join(name)).unwrap() == script, "fuzz/seeds/{target}/{name} is old");
}
