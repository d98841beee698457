//! Policies and keys for signatures: any text is one or is refused.

#![no_main]

use forkd_hub::trust::{Policy, PublicKey, SigningKey};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(policy) = Policy::parse(text) {
        policy.check("registry.example/team/app");
    }
    if let Ok(key) = PublicKey::from_pem(text) {
        assert_eq!(PublicKey::from_pem(&key.to_pem()).expect("what was written is read"), key);
    }
    let _ = SigningKey::from_pem(text);
});
