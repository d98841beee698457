//! The network device with a driver that does whatever the input says: see `src/driver.rs`.

#![no_main]

use forkd_fuzz::driver::drive;
use forkd_fuzz::net::Network;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    drive::<Network>(script);
});
