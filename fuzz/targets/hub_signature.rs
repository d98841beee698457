//! An untrusted signature, in the last line, with its payload before it: it is one of this manifest by this key or is refused.

#![no_main]

use std::sync::LazyLock;

use forkd_hub::trust::{PublicKey, Signature, SigningKey};
use forkd_image::digest::Digest;
use libfuzzer_sys::fuzz_target;

static KEY: LazyLock<PublicKey> = LazyLock::new(|| SigningKey::generate().expect("random numbers").public());

fuzz_target!(|text: &str| {
    let (payload, signature) = text.rsplit_once('\n').unwrap_or((text, ""));
    let (payload, signature) = (payload.to_owned(), signature.to_owned());
    let parsed = Signature::parse(Digest::of(b"a manifest"), payload, signature, KEY.clone());
    assert!(parsed.is_err(), "nobody has signed it");
});
