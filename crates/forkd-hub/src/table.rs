//! Frame tables: which blobs a stream consists of, and the length and digest of every frame in them.
//!
//! ```text
//! {"size": 67108865, "blobs": [{"digest": "sha256:…", "size": 20133000, "frames": "base64"}, …]}
//!
//! frames, one record each:  compressed length u32, little-endian | BLAKE3 of the raw bytes, 32
//! ```
//!
//! A table is kept by its owner after a push or a pull: other versions of zstd make other blobs of the same bytes, and those that a
//! registry has need not be sent again.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forkd_source::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::frame::{self, BLOB_FRAMES, MAX_COMPRESSED_FRAME, MAX_STREAM};

const RECORD: usize = 36;

/// One frame of a blob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Bytes in the blob.
    pub compressed: u32,
    /// Of the raw bytes.
    pub digest: blake3::Hash,
}

/// One blob of a stream. Its frames follow each other without a gap.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BlobText", into = "BlobText")]
pub struct Blob {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    pub(crate) frames: Vec<Frame>,
}

/// The table of a stream. Its constructor checks that blobs and frames fit the stream's size.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "TableText")]
pub struct FrameTable {
    size: u64,
    blobs: Vec<Blob>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlobText {
    digest: Digest,
    size: u64,
    frames: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TableText {
    size: u64,
    blobs: Vec<Blob>,
}

/// A frame table is not consistent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    #[error("a stream of {size} bytes, expected at most {MAX_STREAM}")]
    StreamTooLarge { size: u64 },
    #[error("{found} blobs for a stream of {size} bytes, expected {expected}")]
    BlobCount { size: u64, found: u64, expected: u64 },
    #[error("blob {index} has {found} frames, expected {expected}")]
    FrameCount { index: usize, found: usize, expected: u64 },
    #[error("the frames of blob {digest} are not base64 of whole records of {RECORD} bytes")]
    Records { digest: Digest },
    #[error("blob {digest} has a frame of {length} compressed bytes, expected 1 to {MAX_COMPRESSED_FRAME}")]
    FrameLength { digest: Digest, length: u32 },
    #[error("the frames of blob {digest} have {found} bytes, and the blob has {size}")]
    BlobSize { digest: Digest, found: u64, size: u64 },
}

impl Blob {
    fn new(digest: Digest, size: u64, frames: Vec<Frame>) -> Result<Blob, TableError> {
        let mut found = 0;
        for frame in &frames {
            if !(1..=MAX_COMPRESSED_FRAME).contains(&frame.compressed) {
                return Err(TableError::FrameLength { digest, length: frame.compressed });
            }
            found += u64::from(frame.compressed);
        }
        if found != size {
            return Err(TableError::BlobSize { digest, found, size });
        }
        Ok(Blob { digest, size, frames })
    }

    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Compressed bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }
}

impl TryFrom<BlobText> for Blob {
    type Error = TableError;

    fn try_from(text: BlobText) -> Result<Blob, TableError> {
        let damaged = || TableError::Records { digest: text.digest };
        // Checked before it is decoded: a blob has at most 32 frames.
        if text.frames.len() > (RECORD * BLOB_FRAMES).div_ceil(3) * 4 {
            return Err(damaged());
        }
        let records = STANDARD.decode(&text.frames).map_err(|_| damaged())?;
        let (records, rest) = records.as_chunks::<RECORD>();
        if !rest.is_empty() {
            return Err(damaged());
        }
        let frames = records.iter().map(|record| {
            let (length, digest) = record.split_first_chunk::<4>().ok_or_else(damaged)?;
            let digest: [u8; 32] = digest.try_into().map_err(|_| damaged())?;
            Ok(Frame { compressed: u32::from_le_bytes(*length), digest: digest.into() })
        });
        Blob::new(text.digest, text.size, frames.collect::<Result<_, TableError>>()?)
    }
}

impl From<Blob> for BlobText {
    fn from(blob: Blob) -> BlobText {
        let mut records = Vec::with_capacity(blob.frames.len() * RECORD);
        for frame in &blob.frames {
            records.extend_from_slice(&frame.compressed.to_le_bytes());
            records.extend_from_slice(frame.digest.as_bytes());
        }
        BlobText { digest: blob.digest, size: blob.size, frames: STANDARD.encode(records) }
    }
}

impl TryFrom<TableText> for FrameTable {
    type Error = TableError;

    fn try_from(text: TableText) -> Result<FrameTable, TableError> {
        FrameTable::new(text.size, text.blobs)
    }
}

impl FrameTable {
    /// The one place that decides whether blobs make a stream.
    pub(crate) fn new(size: u64, blobs: Vec<Blob>) -> Result<FrameTable, TableError> {
        if size > MAX_STREAM {
            return Err(TableError::StreamTooLarge { size });
        }
        let (found, expected) = (blobs.len() as u64, frame::blob_count(size));
        if found != expected {
            return Err(TableError::BlobCount { size, found, expected });
        }
        for ((index, blob), number) in blobs.iter().enumerate().zip(0..) {
            let range = frame::blob_range(size, number);
            let expected = frame::frame_count(range.end - range.start);
            if blob.frames.len() as u64 != expected {
                return Err(TableError::FrameCount { index, found: blob.frames.len(), expected });
            }
        }
        Ok(FrameTable { size, blobs })
    }

    /// Raw bytes of the stream.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn blobs(&self) -> &[Blob] {
        &self.blobs
    }

    /// Compressed bytes of the stream.
    pub fn compressed_size(&self) -> u64 {
        self.blobs.iter().map(|blob| blob.size).sum()
    }

    /// The BLAKE3 digests of all frames, in order.
    pub fn frame_digests(&self) -> impl Iterator<Item = blake3::Hash> {
        self.blobs.iter().flat_map(|blob| &blob.frames).map(|frame| frame.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{BLOB_SIZE, FRAME_SIZE};
    use proptest::prelude::*;

    /// A table of made-up blobs.
    fn table(size: u64) -> FrameTable {
        let blobs = (0..frame::blob_count(size)).map(|number| {
            let range = frame::blob_range(size, number);
            let frames = (0..frame::frame_count(range.end - range.start)).map(|frame| Frame {
                compressed: u32::try_from(frame).unwrap() + 1,
                digest: blake3::hash(&(number + frame).to_le_bytes()),
            });
            let frames: Vec<_> = frames.collect();
            let size = frames.iter().map(|frame| u64::from(frame.compressed)).sum();
            Blob::new(Digest::of(&number.to_le_bytes()), size, frames).unwrap()
        });
        FrameTable::new(size, blobs.collect()).unwrap()
    }

    #[test]
    fn tables_of_every_length_survive_json() {
        for size in [0, 1, FRAME_SIZE, FRAME_SIZE + 1, BLOB_SIZE, BLOB_SIZE + 1, 5 * BLOB_SIZE - 1] {
            let table = table(size);
            let json = serde_json::to_string(&table).unwrap();
            assert_eq!(serde_json::from_str::<FrameTable>(&json).unwrap(), table);
            assert_eq!(table.frame_digests().count() as u64, frame::frame_count(size));
        }
    }

    #[test]
    fn the_table_of_64_gib_is_small() {
        let json = serde_json::to_vec(&table(64 << 30)).unwrap();
        assert!(json.len() < 2 << 20, "{} bytes", json.len());
    }

    #[test]
    fn what_does_not_fit_together_is_refused_by_name() {
        let refused = |change: fn(&mut serde_json::Value), says: &str| {
            let mut json = serde_json::to_value(table(BLOB_SIZE + FRAME_SIZE + 1)).unwrap();
            change(&mut json);
            let error = serde_json::from_value::<FrameTable>(json).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        };
        refused(
            |json| json["size"] = (BLOB_SIZE * 3).into(),
            "2 blobs for a stream of 201326592 bytes, expected 3",
        );
        refused(|json| json["size"] = (BLOB_SIZE + 1).into(), "blob 1 has 2 frames, expected 1");
        refused(|json| json["size"] = u64::MAX.into(), "expected at most");
        refused(|json| json["blobs"][0]["size"] = 7.into(), "and the blob has 7");
        refused(|json| json["blobs"][0]["frames"] = "AAAA".into(), "whole records");
        refused(|json| json["blobs"][0]["frames"] = "?".into(), "base64");
        refused(|json| json["blobs"][1]["frames"] = "A".repeat(96).into(), "0 compressed bytes");
        refused(|json| json["blobs"][1]["frames"] = "A".repeat(1 << 20).into(), "base64");
        refused(|json| json["blobs"][0]["digest"] = "sha256:1".into(), "digest");
        refused(|json| json["more"] = 1.into(), "unknown field");
    }

    proptest! {
        #[test]
        fn a_damaged_table_is_refused_or_consistent(at in 0usize..4000, byte in any::<u8>(), cut in any::<bool>()) {
            let mut json = serde_json::to_vec(&table(BLOB_SIZE + 1)).unwrap();
            let at = at % json.len();
            if cut { json.truncate(at) } else { json[at] = byte }
            if let Ok(table) = serde_json::from_slice::<FrameTable>(&json) {
                prop_assert!(FrameTable::new(table.size, table.blobs.clone()).is_ok());
                for blob in table.blobs() {
                    prop_assert!(Blob::new(blob.digest, blob.size, blob.frames.clone()).is_ok());
                }
            }
        }
    }
}
