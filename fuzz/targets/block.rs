//! The block device with a driver that does whatever the input says: see `src/driver.rs`.

#![no_main]

use forkd_fuzz::block::Disk;
use forkd_fuzz::driver::drive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    drive::<Disk>(script);
});
