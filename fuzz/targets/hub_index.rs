//! What a registry says that a tag names, a manifest or an index of variants, with the rest as it should be: it is read or refused.

#![no_main]

use std::sync::LazyLock;

use forkd_fuzz::hub::{manifest, named, receive, snapshot};
use libfuzzer_sys::fuzz_target;

static BLOBS: LazyLock<[Vec<u8>; 3]> = LazyLock::new(|| {
    let (config, blob) = snapshot();
    [manifest(&config), config, blob]
});

fuzz_target!(|document: &[u8]| {
    let [manifest, config, blob] = &*BLOBS;
    receive(&named(document, &[blob, config, manifest]));
});
