//! blake3 digests as they stand in manifests: 64 lowercase hexadecimal digits.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A blake3 digest.
#[derive(PartialOrd, Ord, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; Digest::LENGTH]);

#[derive(Debug, thiserror::Error)]
#[error("not a digest: expected 64 lowercase hexadecimal digits")]
pub struct DigestError;

impl Digest {
    /// Bytes in a digest.
    pub const LENGTH: usize = 32;

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    pub const fn from_bytes(bytes: [u8; Digest::LENGTH]) -> Digest {
        Digest(bytes)
    }

    pub const fn as_bytes(&self) -> &[u8; Digest::LENGTH] {
        &self.0
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Digest, DigestError> {
        // One digest has one name.
        if text.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(DigestError);
        }
        let mut bytes = [0; Digest::LENGTH];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| DigestError)?;
        Ok(Digest(bytes))
    }
}

forkd_proto::as_text!(Digest, DigestError);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_agree() {
        // The published digest of no bytes at all.
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
    }

    #[test]
    fn other_text_is_refused() {
        let good = Digest::of(b"x").to_string();
        for bad in ["", &good[1..], &format!("{good}0"), &good.to_uppercase(), &good.replace(&good[..1], "g")]
        {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
