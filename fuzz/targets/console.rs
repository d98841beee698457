//! The serial console with a guest and a host that do whatever the input says: see `src/console.rs`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|script: &[u8]| {
    forkd_fuzz::console::drive(script);
});
