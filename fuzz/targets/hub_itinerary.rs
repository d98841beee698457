//! What an artifact says of the snapshot in it, also with the right seals: it is a chain of snapshots or is refused.

#![no_main]

use forkd_store::Digest;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

const SEAL: &[u8] = b",\n  \"digest\": \"";

fuzz_target!(|text: &[u8]| {
    let Ok(mut about) = serde_json::from_slice::<Map<String, Value>>(text) else { return };
    let _ = forkd_engine::snapshot_digest(&about);
    // A fuzzer does not find the seal of a manifest that it has changed.
    for manifest in about.get_mut("manifests").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(text) = manifest.as_str().map(str::as_bytes) else { continue };
        let end = text.windows(SEAL.len()).rposition(|window| window == SEAL);
        let body = &text[..end.unwrap_or(text.len())];
        let digest = Digest::of(body).to_string();
        let sealed = [body, SEAL, digest.as_bytes(), b"\"\n}\n"].concat();
        *manifest = String::from_utf8_lossy(&sealed).into_owned().into();
    }
    let _ = forkd_engine::snapshot_digest(&about);
});
