//! The entropy device. Its source is not random, so that an input always does the same.

use std::fs::File;

use forkd_devices::virtio::rng::Rng;

use crate::driver::Subject;

/// Where the bytes come from.
#[derive(Debug)]
pub struct Entropy(&'static str);

impl Entropy {
    fn device(&self) -> Rng {
        Rng::new(File::open(self.0).unwrap())
    }
}

impl Subject for Entropy {
    type Device = Rng;

    /// Odd variants have a source that gives nothing.
    fn new(variant: u8) -> (Entropy, Rng) {
        let entropy = Entropy(if variant & 1 == 0 { "/dev/zero" } else { "/dev/null" });
        let device = entropy.device();
        (entropy, device)
    }

    fn restored(&mut self, _device: &mut Rng) -> Rng {
        self.device()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::{Seed, WRITE};

    #[test]
    fn the_seed_has_its_buffers_filled() {
        let mut seed = Seed::running(0);
        seed.chain(0, 0, &[(0x4_0000, 64, WRITE), (0x4_1000, 0x1_0000, WRITE)]).notify(0);
        seed.restore().chain(0, 2, &[(0x4_0000, 1, WRITE)]).notify(0);
        assert_eq!(seed.check::<Entropy>("rng", "requests"), [2]);
    }
}
