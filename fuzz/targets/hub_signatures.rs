//! The manifest that lists the signatures of a snapshot in a registry: any bytes are one or are refused.

#![no_main]

use forkd_hub::trust::listed_signatures;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|manifest: &[u8]| {
    if let Ok(signatures) = listed_signatures(manifest) {
        assert!(signatures.len() <= 64 && signatures.iter().all(|signature| signature.len() <= 192));
    }
});
