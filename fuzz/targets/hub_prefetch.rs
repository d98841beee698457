//! The prefetch list of a snapshot from a registry: any bytes are one or are refused.

#![no_main]

use forkd_fuzz::hub::first_pages;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    first_pages(bytes);
});
