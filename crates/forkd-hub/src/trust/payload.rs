//! What is signed: the digest of a manifest, in the form of "simple signing".

use forkd_source::digest::Digest;
use serde::{Deserialize, Serialize};

/// Bytes of the largest payload.
pub(super) const MAX_PAYLOAD: u64 = 64 << 10;
const KIND: &str = "cosign container image signature";

#[derive(Serialize, Deserialize)]
struct Payload {
    critical: Critical,
    /// Anything the signer wants; it is not used.
    #[serde(default)]
    optional: Option<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
struct Critical {
    identity: Identity,
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Serialize, Deserialize)]
struct Identity {
    /// Where the signer found it. A copy in another registry has it unchanged, so it is not compared.
    #[serde(rename = "docker-reference")]
    reference: String,
}

#[derive(Serialize, Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: Digest,
}

pub(super) fn payload(repository: &str, digest: Digest) -> Result<String, serde_json::Error> {
    serde_json::to_string(&Payload {
        critical: Critical {
            identity: Identity { reference: repository.into() },
            image: Image { digest },
            kind: KIND.into(),
        },
        optional: None,
    })
}

/// Whether a payload is a signature of this manifest.
pub(super) fn is_of(payload: &[u8], digest: Digest) -> bool {
    let parsed = serde_json::from_slice::<Payload>(payload);
    parsed.is_ok_and(|payload| payload.critical.kind == KIND && payload.critical.image.digest == digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_of_one_manifest() {
        let digest = Digest::of(b"");
        let text = payload("registry.example/a", digest).unwrap();
        let expected = r#"{"critical":{"identity":{"docker-reference":"registry.example/a"},"image":{"docker-manifest-digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},"type":"cosign container image signature"},"optional":null}"#;
        assert_eq!(text, expected);
        assert!(is_of(text.as_bytes(), digest) && !is_of(text.as_bytes(), Digest::of(b"x")));
        assert!(!is_of(expected.replace("cosign container", "other").as_bytes(), digest));
        assert!(!is_of(b"{}", digest) && !is_of(b"", digest));
    }

    proptest::proptest! {
        #[test]
        fn only_the_payload_of_a_digest_is_of_it(
            bytes in proptest::collection::vec(0_u8.., 0..300), at in 0_usize..300, bit in 0_u8..8
        ) {
            let digest = Digest::of(b"");
            proptest::prop_assert!(!is_of(&bytes, digest));
            let mut text = payload("registry.example/a", digest).unwrap().into_bytes();
            let place = text.windows(6).position(|word| word == b"sha256").unwrap();
            let at = place + at % 71;
            text[at] ^= 1 << bit;
            proptest::prop_assert!(!is_of(&text, digest), "bit {bit} of byte {at}");
        }
    }
}
