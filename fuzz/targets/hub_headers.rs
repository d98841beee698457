//! Headers and small answers of registries (challenges, tokens, Retry-After, Content-Range, tags): any bytes are parsed or are refused.

#![no_main]

use forkd_fuzz::hub::read_answers;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read_answers(bytes);
});
