//! SHA-256 digests, as registries write them: `sha256:` and 64 hexadecimal digits.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

#[derive(Debug, thiserror::Error)]
#[error("not a digest that is supported: expected sha256: and 64 lowercase hexadecimal digits")]
pub struct DigestError;

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digits alone, as names of directories have them.
    pub fn hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Enough of the digits to tell a few from each other.
    pub fn short(&self) -> String {
        self.hex()[..12].to_owned()
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Digest, DigestError> {
        let digits = text.strip_prefix("sha256:").ok_or(DigestError)?;
        // One digest has one name.
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(DigestError);
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| DigestError)?;
        Ok(Digest(bytes))
    }
}

forkd_proto::as_text!(Digest, DigestError);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A digest under construction, of parts whose borders count: `ab` and `c` are not `a` and `bc`.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

impl Hasher {
    pub fn new(purpose: &str) -> Hasher {
        Hasher::default().part(purpose.as_bytes())
    }

    #[must_use]
    pub fn part(mut self, bytes: &[u8]) -> Hasher {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

/// Takes the digest of all that is read through it.
#[derive(Debug)]
pub struct HashingReader<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> HashingReader<R> {
    pub fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Sha256::new() }
    }

    /// The digest of all: what was read, and the rest.
    pub fn finish(mut self) -> io::Result<Digest> {
        let mut buffer = vec![0; 64 << 10];
        while self.read(&mut buffer)? > 0 {}
        Ok(Digest(self.hash.finalize().into()))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(&buffer[..read]);
        Ok(read)
    }
}

/// A digest of bytes that come piece by piece.
#[derive(Debug, Default)]
pub struct Stream(Sha256);

impl Stream {
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_agree() {
        // The published digest of no bytes at all.
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
        for bad in
            ["", "sha256:", &empty[7..], &empty[..70], &empty.to_uppercase(), "sha512:00", "sha256:../../x"]
        {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }

    #[test]
    fn borders_of_parts_count() {
        let digest = |parts: &[&str]| {
            parts.iter().fold(Hasher::new("test"), |hasher, part| hasher.part(part.as_bytes())).finish()
        };
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
        assert_ne!(digest(&[""]), digest(&[]));
    }

    #[test]
    fn a_reader_s_digest_includes_what_nobody_read() {
        let mut reader = HashingReader::new(&b"0123456789"[..]);
        reader.read_exact(&mut [0; 3]).unwrap();
        assert_eq!(reader.finish().unwrap(), Digest::of(b"0123456789"));
    }
}
