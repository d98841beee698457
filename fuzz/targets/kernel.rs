//! Kernel images are files that a user was given: any bytes unpack or are refused.

#![no_main]

use forkd_image::kernel::to_elf;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    if let Ok(elf) = to_elf(file.to_vec()) {
        assert!(elf.starts_with(b"\x7fELF"));
    }
});
