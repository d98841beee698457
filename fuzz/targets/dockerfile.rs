//! Parses any text as a Dockerfile, as `.dockerignore` and as `forkd.toml`.
#![no_main]

use std::path::Path;

use forkd_image::chain;
use forkd_image::dockerfile::{Ignore, parse};
use forkd_image::recipe::Recipe;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = parse(text);
    if let Ok(ignore) = Ignore::parse(text) {
        let _ = ignore.excludes("a/b/c.txt");
    }
    let _ = Recipe::parse(text, Path::new("forkd.toml"));
    let _ = chain::parse(text, Path::new("forkd.toml"));
});
