//! The config of a snapshot in a registry, with everything around it as it should be: it is read or refused.

#![no_main]

use std::sync::LazyLock;

use forkd_fuzz::hub::{receive, sealed, snapshot};
use libfuzzer_sys::fuzz_target;

static BLOB: LazyLock<Vec<u8>> = LazyLock::new(|| snapshot().1);

fuzz_target!(|config: &[u8]| {
    receive(&sealed(config, &[&BLOB]));
});
