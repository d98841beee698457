//! One signature of a manifest: made where the key is, stored in a registry from elsewhere.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forkd_source::digest::Digest;

use super::key::{KeyError, PublicKey, SigningKey};
use super::payload::{self, MAX_PAYLOAD};
use super::signatures::MAX_SIGNATURE;

/// A signature, checked with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    digest: Digest,
    payload: String,
    /// Base64 of DER.
    signature: String,
    key: PublicKey,
}

/// Something else than a signature of this manifest by this key.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    #[error("the payload has {found} bytes, expected at most {MAX_PAYLOAD}")]
    TooLarge { found: usize },
    #[error("the payload is not what cosign signs for {digest}")]
    Payload { digest: Digest },
    #[error("the signature is not base64 of at most {MAX_SIGNATURE} digits")]
    Encoding,
    #[error("the signature does not match this payload and the key {key}")]
    NotSigned { key: String },
}

impl SigningKey {
    /// Signs a manifest of a repository, named as [`crate::registry::Repository::name`] does.
    pub fn sign_manifest(&self, repository: &str, digest: Digest) -> Result<Signature, KeyError> {
        let payload = payload::payload(repository, digest);
        let payload = payload.map_err(|error| KeyError::Payload { reason: error.to_string() })?;
        let signature = STANDARD.encode(self.sign(payload.as_bytes())?);
        Ok(Signature { digest, payload, signature, key: self.public() })
    }
}

impl Signature {
    /// Checks a signature that somebody else has made.
    pub fn parse(
        digest: Digest,
        payload: String,
        signature: String,
        key: PublicKey,
    ) -> Result<Signature, SignatureError> {
        if payload.len() as u64 > MAX_PAYLOAD {
            return Err(SignatureError::TooLarge { found: payload.len() });
        }
        if !payload::is_of(payload.as_bytes(), digest) {
            return Err(SignatureError::Payload { digest });
        }
        if signature.len() > MAX_SIGNATURE {
            return Err(SignatureError::Encoding);
        }
        let der = STANDARD.decode(&signature).map_err(|_| SignatureError::Encoding)?;
        if !key.has_signed(payload.as_bytes(), &der) {
            return Err(SignatureError::NotSigned { key: key.fingerprint() });
        }
        Ok(Signature { digest, payload, signature, key })
    }

    /// Of the manifest that was signed.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// What was signed, in JSON.
    pub fn payload(&self) -> &str {
        &self.payload
    }

    /// The signature itself, in base64.
    pub fn signature(&self) -> &str {
        &self.signature
    }

    /// Whose it is.
    pub fn key(&self) -> &PublicKey {
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_survives_and_another_is_refused() {
        let key = SigningKey::generate().unwrap();
        let (digest, other) = (Digest::of(b"a"), Digest::of(b"b"));
        let made = key.sign_manifest("registry.example/team/app", digest).unwrap();
        let parse = |digest, payload: &str, signature: &str, key: &SigningKey| {
            Signature::parse(digest, payload.into(), signature.into(), key.public())
        };
        assert_eq!(parse(digest, made.payload(), made.signature(), &key).unwrap(), made);

        let refused = |digest, payload: &str, signature: &str, key: &SigningKey, says: &str| {
            let error = parse(digest, payload, signature, key).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        let (payload, signature) = (made.payload(), made.signature());
        refused(other, payload, signature, &key, "is not what cosign signs for sha256:");
        refused(digest, "{}", signature, &key, "is not what cosign signs");
        refused(digest, &" ".repeat(70_000), signature, &key, "70000 bytes");
        refused(digest, payload, "?", &key, "not base64");
        refused(digest, payload, &"A".repeat(300), &key, "not base64");
        refused(digest, payload, "", &key, "does not match this payload");
        refused(digest, &payload.replace("team", "tame"), signature, &key, "does not match this payload");
        refused(digest, payload, signature, &SigningKey::generate().unwrap(), "does not match this payload");
    }
}
