//! Small JSON files beside a manifest, which the manifest does not list. Each begins with a line that has the digest of the rest.
//!
//! ```text
//! b0a8…                blake3 of every byte behind this line
//! {"format":…}
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Serialize;

use crate::digest::Digest;
use crate::files;
use crate::store::StoreError;

const DIGITS: usize = 2 * Digest::LENGTH;

/// A file as it is written.
pub(crate) fn encode(fields: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(fields)?;
    text.push(b'\n');
    Ok([format!("{}\n", Digest::of(&text)).into_bytes(), text].concat())
}

/// The JSON of a file, if it is whole.
pub(crate) fn decode(file: &[u8]) -> Option<&[u8]> {
    let (digest, text) = file.split_at_checked(DIGITS)?;
    let text = text.strip_prefix(b"\n")?;
    let expected: Digest = std::str::from_utf8(digest).ok()?.parse().ok()?;
    (Digest::of(text) == expected).then_some(text)
}

/// Writes a file of a snapshot's directory in the place of what was there. It is not synced.
pub(crate) fn replace(directory: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    let (new, path) = (directory.join(format!("{name}.new")), directory.join(name));
    // Left by a process that was killed.
    let _ = fs::remove_file(&new);
    let file = files::create(&new).map_err(StoreError::at("create", &new))?;
    file.write_all_at(bytes, 0).map_err(StoreError::at("write", &new))?;
    fs::rename(&new, &path).map_err(StoreError::at("rename", &new))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let good = encode(&["some", "words"]).unwrap();
        assert_eq!(decode(&good), Some(&b"[\"some\",\"words\"]\n"[..]));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&bad), None, "bit {bit}");
        }
        for length in 0..good.len() {
            assert_eq!(decode(&good[..length]), None, "{length} bytes");
        }
        assert_eq!(decode(&[&good[..], b" "].concat()), None);
    }
}
