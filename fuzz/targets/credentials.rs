//! Docker's config file, and what a credential helper prints: any bytes have credentials, have none, or are refused.

#![no_main]

use std::path::Path;

use forkd_source::credential_helper;
use forkd_source::credentials::{AskHelper, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let file = Path::new("config.json");
    let helper = |name: &str, server: &str| credential_helper::parse(name, server, bytes);
    let answers: AskHelper<'_> = &helper;
    for helper in [None, Some(answers)] {
        for registry in ["registry.example", "registry.example:5000", "index.docker.io"] {
            let _ = parse(bytes, file, registry, helper);
        }
    }
    let _ = helper("test", "registry.example");
});
