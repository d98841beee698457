//! Unpacks whatever comes into a directory. Nothing beside that directory may come, go or change.
#![no_main]

use std::fs;

use forkd_image::Silent;
use forkd_image::archive::{Limits, Tree, Used, Whiteouts, apply, decompressed};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let outer = tempfile::tempdir().expect("a directory");
    fs::write(outer.path().join("secret"), "secret").expect("a file");
    let mut tree = Tree::create(&outer.path().join("root")).expect("a tree");
    let limits = Limits { total: 1 << 20, file: 1 << 20, entries: 200, path: 1000, depth: 20 };
    if let Ok(archive) = decompressed(file) {
        let _ = apply(&mut tree, archive, Whiteouts::Apply, &limits, &mut Used::default(), &Silent);
    }
    tree.finish().expect("a tree that was unpacked to can be walked");
    assert_eq!(fs::read_dir(outer.path()).expect("a list").count(), 2);
    assert_eq!(fs::read(outer.path().join("secret")).expect("the secret"), b"secret");
});
