//! The secret of a token, and what is kept of it.
//!
//! ```text
//! e2b_0123456789abcdef0123456789abcdef01234567     "e2b_", then 160 random bits in hex
//! ```
//!
//! The form is the one that E2B's clients insist on.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

const PREFIX: &str = "e2b_";
const RANDOM_BYTES: usize = 20;
const LENGTH: usize = PREFIX.len() + 2 * RANDOM_BYTES;

/// A secret. It is never printed by accident: `Debug` hides it, and there is no `Display`.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// A new one, from the kernel's generator.
    pub fn generate() -> Result<Secret, NoRandomness> {
        Ok(Secret(format!("{PREFIX}{}", hex::encode(random::<RANDOM_BYTES>()?))))
    }

    /// Parses a secret; `None` if it cannot be one.
    pub fn parse(text: &str) -> Option<Secret> {
        let digits = text.strip_prefix(PREFIX)?;
        let fits = text.len() == LENGTH && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        fits.then(|| Secret(text.to_owned()))
    }

    /// The secret itself, for the one who is to keep it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is kept of it.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Secret(…)")
    }
}

/// The SHA-256 of a secret. Slow, salted hashes are for what people choose: 160 random bits cannot be guessed at any
/// speed, and no two of them are equal, so that a plain hash is enough to make a stolen file useless.
#[derive(Clone, Copy)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Takes the same time wherever the two differ.
    pub fn matches(&self, other: &Fingerprint) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Fingerprint(…)")
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        hex::serde::serialize(self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Fingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fingerprint, D::Error> {
        hex::serde::deserialize(deserializer).map(Fingerprint)
    }
}

/// A text without the secrets that are in it: callers may send theirs in the wrong place.
pub fn redact(text: &str) -> String {
    let mut parts = text.split(PREFIX);
    let mut clean = parts.next().unwrap_or("").to_owned();
    for part in parts {
        clean += PREFIX;
        clean += part.trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    clean
}

/// The kernel gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("cannot get random bytes from the kernel")]
pub struct NoRandomness(#[source] std::io::Error);

/// Random bytes from the kernel.
pub fn random<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| NoRandomness(error.into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_secret_has_the_form_and_is_not_printed() {
        let secret = Secret::generate().unwrap();
        let other = Secret::generate().unwrap();
        assert_eq!(secret.expose().len(), 44);
        assert_ne!(secret.expose(), other.expose());
        let again = Secret::parse(secret.expose()).unwrap();
        assert!(secret.fingerprint().matches(&again.fingerprint()));
        assert!(!secret.fingerprint().matches(&other.fingerprint()));
        assert!(!format!("{secret:?} {:?}", secret.fingerprint()).contains(&secret.expose()[4..12]));
    }

    #[test]
    fn a_fingerprint_survives_its_file() {
        let kept = Secret::generate().unwrap().fingerprint();
        let text = serde_json::to_string(&kept).unwrap();
        assert!(serde_json::from_str::<Fingerprint>(&text).unwrap().matches(&kept));
        for wrong in ["\"\"", "\"abc\"", "7", &text.replace('"', "\"0")] {
            assert!(serde_json::from_str::<Fingerprint>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_do_not_stay_in_a_text() {
        let secret = Secret::generate().unwrap();
        let secret = secret.expose();
        assert_eq!(redact("/v1/sandboxes"), "/v1/sandboxes");
        assert_eq!(redact(&format!("/{secret}/x/{secret}{secret}")), "/e2b_/x/e2b_e2b_");
    }

    proptest::proptest! {
        #[test]
        fn only_the_exact_form_is_a_secret(text in "(e2b_)?[0-9a-fA-Fg]{38,42}|\\PC{0,60}") {
            let digits = text.strip_prefix("e2b_").unwrap_or("");
            let fits = digits.len() == 40 && digits.chars().all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase());
            proptest::prop_assert_eq!(Secret::parse(&text).is_some(), fits);
        }
    }
}
