//! The vsock device with a driver that does whatever the input says: see `src/driver.rs`.

#![no_main]

use forkd_fuzz::driver::drive;
use forkd_fuzz::vsock::Sockets;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    drive::<Sockets>(script);
});
