//! ECDSA keys on the curve P-256: PKCS#8 and SubjectPublicKeyInfo in PEM, as openssl and cosign write them.

use std::fmt;

use forkd_source::digest::Digest;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1, ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, UnparsedPublicKey,
};

use super::pem;

const PRIVATE: &str = "PRIVATE KEY";
const PUBLIC: &str = "PUBLIC KEY";
/// SubjectPublicKeyInfo up to the point: id-ecPublicKey, prime256v1, a bit string of 66 bytes.
const SPKI: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// A key cannot be used. What it contains is not repeated.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("not a key in PEM: expected one block that begins with -----BEGIN {expected}-----")]
    Pem { expected: &'static str },
    #[error("a PEM block {found:?}, expected {expected:?}{}", hint(.found))]
    Label { found: String, expected: &'static str },
    #[error("not a public key for ECDSA on the curve P-256, which is the only kind that is supported")]
    Public,
    #[error("not a private key for ECDSA on the curve P-256 in PKCS#8, with its public key: {reason}")]
    Private { reason: String },
    #[error("the system's random number generator failed")]
    Random,
    #[error("what is signed cannot be written: {reason}")]
    Payload { reason: String },
}

fn hint(found: &str) -> &'static str {
    match found {
        "ENCRYPTED SIGSTORE PRIVATE KEY" | "ENCRYPTED COSIGN PRIVATE KEY" => {
            "; cosign's keys have a password, which is not supported: sign with cosign sign --key, or make a key with forkd snapshot key new"
        }
        "ENCRYPTED PRIVATE KEY" => {
            "; keys with a password are not supported: remove it with openssl pkcs8 -topk8 -nocrypt"
        }
        "EC PRIVATE KEY" => "; convert it with openssl pkcs8 -topk8 -nocrypt",
        "CERTIFICATE" => "; certificates are not supported",
        _ => "",
    }
}

fn decode(text: &str, expected: &'static str) -> Result<Vec<u8>, KeyError> {
    let (label, der) = pem::decode(text).ok_or(KeyError::Pem { expected })?;
    if label != expected {
        return Err(KeyError::Label { found: label.chars().take(60).collect(), expected });
    }
    Ok(der)
}

/// A key that signs. It is never shown.
pub struct SigningKey {
    pair: EcdsaKeyPair,
    pkcs8: Vec<u8>,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public().fingerprint())
    }
}

impl SigningKey {
    /// Makes a new key.
    pub fn generate() -> Result<SigningKey, KeyError> {
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
        SigningKey::from_der(pkcs8.map_err(|_| KeyError::Random)?.as_ref())
    }

    pub fn from_pem(text: &str) -> Result<SigningKey, KeyError> {
        SigningKey::from_der(&decode(text, PRIVATE)?)
    }

    fn from_der(pkcs8: &[u8]) -> Result<SigningKey, KeyError> {
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &SystemRandom::new());
        let pair = pair.map_err(|error| KeyError::Private { reason: error.to_string() })?;
        Ok(SigningKey { pair, pkcs8: pkcs8.to_vec() })
    }

    /// The secret itself: keep it in a file that only its owner can read.
    pub fn to_pem(&self) -> String {
        pem::encode(PRIVATE, &self.pkcs8)
    }

    pub fn public(&self) -> PublicKey {
        let mut point = [0; 65];
        point.copy_from_slice(self.pair.public_key().as_ref());
        PublicKey { point }
    }

    pub(super) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, KeyError> {
        let signature = self.pair.sign(&SystemRandom::new(), message).map_err(|_| KeyError::Random)?;
        Ok(signature.as_ref().to_vec())
    }
}

/// A key that signatures are checked with.
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// Uncompressed.
    point: [u8; 65],
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", self.fingerprint())
    }
}

impl PublicKey {
    pub fn from_pem(text: &str) -> Result<PublicKey, KeyError> {
        let der = decode(text, PUBLIC)?;
        let point = der.strip_prefix(&SPKI).and_then(|point| <[u8; 65]>::try_from(point).ok());
        // 4 means uncompressed. Whether the point is on the curve is checked with each signature.
        point.filter(|point| point[0] == 4).map(|point| PublicKey { point }).ok_or(KeyError::Public)
    }

    fn to_der(&self) -> Vec<u8> {
        [&SPKI[..], &self.point].concat()
    }

    pub fn to_pem(&self) -> String {
        pem::encode(PUBLIC, &self.to_der())
    }

    /// Names the key: the first digits of the SHA-256 of its DER form.
    pub fn fingerprint(&self) -> String {
        Digest::of(&self.to_der()).hex()[..16].to_owned()
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &self.point).verify(message, signature).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_survive_pem_and_sign() {
        let key = SigningKey::generate().unwrap();
        let again = SigningKey::from_pem(&key.to_pem()).unwrap();
        let public = PublicKey::from_pem(&key.public().to_pem()).unwrap();
        assert_eq!(public, again.public());
        let signature = again.sign(b"message").unwrap();
        assert!(public.has_signed(b"message", &signature));
        assert!(!public.has_signed(b"massage", &signature));
        assert!(!public.has_signed(b"message", &signature[1..]));
        assert!(!SigningKey::generate().unwrap().public().has_signed(b"message", &signature));
        assert!(!format!("{key:?}").contains(&key.to_pem()[40..60]));
    }

    #[test]
    fn other_keys_are_refused_by_name() {
        let key = SigningKey::generate().unwrap();
        let public = key.public().to_pem();
        let says = |error: KeyError, says: &str| {
            let text = error.to_string();
            assert!(text.contains(says), "{text}");
        };
        says(SigningKey::from_pem(&public).unwrap_err(), "\"PUBLIC KEY\"");
        says(PublicKey::from_pem("nonsense").unwrap_err(), "-----BEGIN PUBLIC KEY-----");
        for (label, what_to_do) in [
            ("ENCRYPTED SIGSTORE PRIVATE KEY", "cosign sign --key"),
            ("ENCRYPTED COSIGN PRIVATE KEY", "forkd snapshot key new"),
            ("ENCRYPTED PRIVATE KEY", "openssl pkcs8 -topk8 -nocrypt"),
        ] {
            let error = SigningKey::from_pem(&pem::encode(label, b"x")).unwrap_err().to_string();
            assert!(error.contains("password") && error.contains(what_to_do), "{error}");
        }
        says(SigningKey::from_pem(&pem::encode("EC PRIVATE KEY", b"x")).unwrap_err(), "openssl pkcs8");
        says(SigningKey::from_pem(&pem::encode(PRIVATE, b"x")).unwrap_err(), "PKCS#8");
        for der in [&b""[..], &SPKI, &key.public().to_der()[1..], &[0; 91]] {
            says(PublicKey::from_pem(&pem::encode(PUBLIC, der)).unwrap_err(), "P-256");
        }
        // A point that is not on the curve has signed nothing.
        let nowhere = PublicKey { point: [4; 65] };
        assert!(!nowhere.has_signed(b"x", &key.sign(b"x").unwrap()));
    }

    /// One for all cases: making them takes longer than the cases.
    static PEM: LazyLock<String> = LazyLock::new(|| SigningKey::generate().unwrap().to_pem());

    proptest! {
        #[test]
        fn any_bytes_are_a_key_or_are_refused(
            der in prop::collection::vec(any::<u8>(), 0..200),
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            for label in [PRIVATE, PUBLIC, "EC PRIVATE KEY"] {
                let text = pem::encode(label, &der);
                prop_assert!(SigningKey::from_pem(&text).is_err() && PublicKey::from_pem(&text).is_err());
            }
            let key = SigningKey::from_pem(&PEM).unwrap();
            let signature = key.sign(b"message").unwrap();
            // One flipped bit.
            let mut public = key.public().to_der();
            let place = at.index(public.len());
            public[place] ^= 1 << bit;
            if let Ok(other) = PublicKey::from_pem(&pem::encode(PUBLIC, &public)) {
                prop_assert!(!other.has_signed(b"message", &signature), "bit {} of byte {}", bit, place);
                prop_assert_eq!(other.to_der(), public);
            }
            let mut private = key.pkcs8.clone();
            let place = at.index(private.len());
            private[place] ^= 1 << bit;
            if let Ok(other) = SigningKey::from_pem(&pem::encode(PRIVATE, &private)) {
                let signature = other.sign(b"message").unwrap();
                prop_assert!(other.public().has_signed(b"message", &signature), "bit {} of byte {}", bit, place);
            }
        }
    }
}
