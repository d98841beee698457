//! An archive with a snapshot, as `forkd snapshot load` reads it: any bytes are one or are refused.

#![no_main]

use forkd_fuzz::hub::receive;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|archive: &[u8]| {
    receive(archive);
});
