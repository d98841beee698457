//! What an agent says: any bytes decode or are refused.

#![no_main]

use forkd_fuzz::envd::read;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
});
