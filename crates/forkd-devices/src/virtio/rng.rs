//! The entropy device: gives the guest random bytes of the host.
//!
//! It has no state. The bytes come from a descriptor of /dev/urandom, which never gives two processes the same ones, so
//! nothing has to be made fresh after a fork.

use std::fs::File;
use std::io::{Read, Write};

use virtio_bindings::virtio_ids::VIRTIO_ID_RNG;
use virtio_queue::Writer;
use vm_memory::GuestMemoryMmap;

use super::chain::{Budget, Chain, Done, check, work_through};
use super::{Driver, DriverFault, VirtioDevice};

const QUEUE: u16 = 16;

/// The most bytes for one request. A device may give fewer than it is asked for, and Linux asks for less than this.
const MAX_REQUEST: usize = 4096;

const BUDGET: Budget = Budget { chains: 2 * QUEUE as usize, bytes: 64 << 10 };

/// The device.
#[derive(Debug)]
pub struct Rng {
    source: File,
    failures: u64,
    unfinished: bool,
}

impl Rng {
    /// Reads its random bytes from a descriptor of /dev/urandom.
    pub fn new(source: File) -> Rng {
        Rng { source, failures: 0, unfinished: false }
    }

    pub fn source(&self) -> &File {
        &self.source
    }

    /// How often the source gave nothing. The guest got nothing then, and never something that is not random.
    pub fn failures(&self) -> u64 {
        self.failures
    }

    fn handle(&mut self, chain: Chain<'_>, memory: &GuestMemoryMmap) -> Result<Done, DriverFault> {
        check(chain.clone(), QUEUE.into())?;
        let outside = |error| DriverFault(format!("a buffer outside of memory: {error}"));
        let mut output: Writer<'_> = Writer::new(memory, chain).map_err(outside)?;
        let mut bytes = [0; MAX_REQUEST];
        let wanted = &mut bytes[..output.available_bytes().min(MAX_REQUEST)];
        if self.source.read_exact(wanted).is_ok() {
            // It fits: this is how much the chain had room for.
            let _ = output.write_all(wanted);
        } else {
            self.failures += 1;
        }
        let written = output.bytes_written();
        Ok(Done { written: u32::try_from(written).unwrap_or(0), cost: written as u64 })
    }
}

impl VirtioDevice for Rng {
    fn kind(&self) -> u32 {
        VIRTIO_ID_RNG
    }

    fn features(&self) -> u64 {
        0
    }

    fn queue_sizes(&self) -> &'static [u16] {
        &[QUEUE]
    }

    fn is_busy(&self, _queue: usize) -> bool {
        false
    }

    fn read_config(&self, _offset: u64, data: &mut [u8]) {
        data.fill(0);
    }

    fn activate(&mut self, _features: u64) {}

    fn reset(&mut self) {
        self.unfinished = false;
    }

    fn queue_notified(&mut self, queue: usize, driver: &mut Driver<'_>) -> Result<(), DriverFault> {
        let memory = driver.memory;
        self.unfinished = work_through(driver, queue, BUDGET, |chain| self.handle(chain, memory))?;
        Ok(())
    }

    fn is_unfinished(&self) -> bool {
        self.unfinished
    }
}

#[cfg(test)]
mod tests {
    use super::super::transport::mock::{BUFFERS, MEMORY, MockDriver, readable, writable};
    use super::*;

    fn driver() -> MockDriver<Rng> {
        MockDriver::running(Rng::new(File::open("/dev/urandom").unwrap()))
    }

    #[test]
    fn buffers_are_filled_with_different_bytes() {
        let mut driver = driver();
        driver.offer(0, 0, &[writable(BUFFERS, 64), writable(BUFFERS + 64, 64)]);
        driver.offer(0, 2, &[writable(BUFFERS + 128, 128)]);
        driver.notify(0);
        assert_eq!((driver.used(0, 0), driver.used(0, 1)), ((0, 128), (2, 128)));
        let (one, two) = (driver.get(BUFFERS, 128), driver.get(BUFFERS + 128, 128));
        assert_ne!(one, two);
        assert!(one.iter().filter(|byte| **byte == 0).count() < 16);
        assert_eq!(driver.interrupt.count(), 1);
    }

    #[test]
    fn a_large_buffer_is_filled_in_part() {
        let mut driver = driver();
        driver.offer(0, 0, &[writable(BUFFERS, 1 << 20)]);
        driver.notify(0);
        assert_eq!(driver.used(0, 0), (0, 4096));
        assert_eq!(driver.get(BUFFERS + 4096, 4096), [0; 4096]);
    }

    #[test]
    fn a_buffer_that_cannot_be_written_is_left_alone() {
        let mut driver = driver();
        driver.offer(0, 0, &[readable(BUFFERS, 64)]);
        driver.offer(0, 1, &[writable(BUFFERS, 0)]);
        driver.notify(0);
        assert_eq!((driver.used(0, 0), driver.used(0, 1)), ((0, 0), (1, 0)));
        assert_eq!(driver.get(BUFFERS, 64), [0; 64]);
        driver.offer(0, 0, &[writable(MEMORY - 8, 64)]);
        driver.notify(0);
        assert!(driver.fault().contains("outside of memory"), "{}", driver.fault());
    }

    #[test]
    fn without_a_source_the_guest_gets_nothing() {
        let mut driver = MockDriver::running(Rng::new(File::open("/dev/null").unwrap()));
        driver.offer(0, 0, &[writable(BUFFERS, 64)]);
        driver.notify(0);
        assert_eq!(driver.used(0, 0), (0, 0));
        assert_eq!(driver.transport.device().failures(), 1);
    }
}
