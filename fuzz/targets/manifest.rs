//! Manifests are files that anyone may have written: any bytes are a manifest or are refused, also with a good seal.

#![no_main]

use forkd_store::{Digest, Manifest, ManifestError};
use libfuzzer_sys::fuzz_target;

const SEAL: &[u8] = b",\n  \"digest\": \"";

fuzz_target!(|file: &[u8]| {
    check(file);
    // A changed manifest has a wrong seal, and a fuzzer does not find the right one: it is put on again.
    let end = file.windows(SEAL.len()).rposition(|window| window == SEAL);
    let body = &file[..end.unwrap_or(file.len())];
    let digest = Digest::of(body).to_string();
    check(&[body, SEAL, digest.as_bytes(), b"\"\n}\n"].concat());
});

fn check(file: &[u8]) {
    let Ok(read) = Manifest::parse(file) else {
        return;
    };
    match read.manifest.clone().seal() {
        Ok((sealed, file)) => {
            assert_eq!(sealed.manifest, read.manifest);
            assert_eq!(Manifest::parse(&file).unwrap(), sealed);
        }
        // The file that was read had no spaces, this one has.
        Err(error) => assert!(matches!(error, ManifestError::TooLarge { .. }), "{error}"),
    }
}
