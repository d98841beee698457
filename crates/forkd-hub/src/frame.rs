//! How a stream is cut: frames of 2 MiB, 32 frames a blob.
//!
//! ```text
//!  raw bytes   |  2 MiB  |  2 MiB  |  …  |  2 MiB  |  2 MiB  | rest |
//!  frames          0         1              31        32        33
//!                  ▼         ▼               ▼         ▼         ▼
//!  blobs       [ zstd  ][  zstd  ] … [    zstd  ][[  zstd ][  zstd  ]]
//!              blob 0: at most 64 MiB of raw bytes   blob 1
//! ```
//!
//! A frame depends on its own 2 MiB only, so equal data at an equal place is an equal frame, and any frame can be read without those
//! before it.

use std::ops::Range;

/// Raw bytes in a frame; the last one of a stream may be shorter.
pub const FRAME_SIZE: u64 = 2 << 20;
/// Frames in a blob; the last one of a stream may have fewer.
pub const BLOB_FRAMES: usize = 32;
/// Raw bytes in a blob.
pub const BLOB_SIZE: u64 = FRAME_SIZE * BLOB_FRAMES as u64;
/// Bytes of the largest compressed frame: what zstd needs for data that it cannot compress, and some to spare.
pub const MAX_COMPRESSED_FRAME: u32 = (2 << 20) + (16 << 10);
/// Raw bytes of the largest stream. Its table still fits into a config.
pub const MAX_STREAM: u64 = 512 << 30;

/// Frames of a stream of `size` raw bytes.
pub fn frame_count(size: u64) -> u64 {
    size.div_ceil(FRAME_SIZE)
}

/// Blobs of a stream of `size` raw bytes.
pub(crate) fn blob_count(size: u64) -> u64 {
    size.div_ceil(BLOB_SIZE)
}

/// Where a frame's raw bytes are in a stream of `size` bytes.
pub fn frame_range(size: u64, frame: u64) -> Range<u64> {
    let start = frame.saturating_mul(FRAME_SIZE).min(size);
    start..start.saturating_add(FRAME_SIZE).min(size)
}

/// Where a blob's raw bytes are in a stream of `size` bytes.
pub(crate) fn blob_range(size: u64, blob: u64) -> Range<u64> {
    let start = blob.saturating_mul(BLOB_SIZE).min(size);
    start..start.saturating_add(BLOB_SIZE).min(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_and_blobs_cover_a_stream() {
        for size in [0, 1, FRAME_SIZE - 1, FRAME_SIZE, FRAME_SIZE + 1, BLOB_SIZE, 3 * BLOB_SIZE + 5] {
            let frames: u64 = (0..frame_count(size))
                .map(|frame| {
                    let range = frame_range(size, frame);
                    assert!(!range.is_empty());
                    range.end - range.start
                })
                .sum();
            let blobs: u64 = (0..blob_count(size))
                .map(|blob| {
                    let range = blob_range(size, blob);
                    range.end - range.start
                })
                .sum();
            assert_eq!((frames, blobs), (size, size));
        }
        assert!(frame_range(10, u64::MAX).is_empty());
    }

    #[test]
    fn no_frame_is_larger_than_the_limit() {
        let bound = zstd::zstd_safe::compress_bound(usize::try_from(FRAME_SIZE).unwrap());
        assert!(bound <= MAX_COMPRESSED_FRAME as usize, "{bound}");
    }
}
