//! A VM's state comes from a file that anyone may have written: any bytes are a state or are refused.

#![no_main]

use forkd_store::{Digest, StateHeader, VmState};
use libfuzzer_sys::fuzz_target;

/// Where `state.bin` has its digests.
const PAYLOAD_DIGEST: usize = 32;
const CHECKSUM: usize = 64;

fuzz_target!(|file: &[u8]| {
    check(file.to_vec());
    // A fuzzer does not find digests: one after the other is made good.
    if file.len() >= StateHeader::LENGTH {
        let mut file = file.to_vec();
        let digest = Digest::of(&file[..CHECKSUM]);
        file[CHECKSUM..StateHeader::LENGTH].copy_from_slice(digest.as_bytes());
        check(file.clone());
        let digest = Digest::of(&file[StateHeader::LENGTH..]);
        file[PAYLOAD_DIGEST..CHECKSUM].copy_from_slice(digest.as_bytes());
        let digest = Digest::of(&file[..CHECKSUM]);
        file[CHECKSUM..StateHeader::LENGTH].copy_from_slice(digest.as_bytes());
        check(file);
    }
    let whole = [&StateHeader::new(7, file).encode()[..], file].concat();
    let state = VmState::parse(whole).unwrap();
    assert!(state.version() == 7 && state.payload() == file);
});

fn check(file: Vec<u8>) {
    if let Ok(state) = VmState::parse(file.clone()) {
        let header = StateHeader::new(state.version(), state.payload()).encode();
        assert!(file == [&header[..], state.payload()].concat());
    }
}
