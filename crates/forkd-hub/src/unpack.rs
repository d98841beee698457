//! From a compressed frame to raw bytes that were checked.

use std::cell::RefCell;
use std::io;

use crate::frame;
use crate::table::{Frame, FrameTable};

/// A frame is not what the table says.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    #[error("frame {frame} cannot be decompressed")]
    Decompress { frame: u64, source: io::Error },
    #[error("frame {frame} has {found} bytes, expected {expected}")]
    Length { frame: u64, found: usize, expected: u64 },
    #[error("frame {frame} has the BLAKE3 digest {found}, expected {expected}")]
    Digest { frame: u64, found: blake3::Hash, expected: blake3::Hash },
}

thread_local! {
    /// The decoder and the output of this thread: making them anew for each frame costs as much as a small frame does.
    static BUFFERS: RefCell<Option<(zstd::bulk::Decompressor<'static>, Vec<u8>)>> = const { RefCell::new(None) };
}

/// Decompresses and checks a frame, and gives its raw bytes to `take`.
pub(crate) fn unpack_frame<T>(
    table: &FrameTable,
    number: u64,
    expected: Frame,
    compressed: &[u8],
    take: impl FnOnce(&[u8], u64) -> T,
) -> Result<T, UnpackError> {
    let range = frame::frame_range(table.size(), number);
    let length = range.end - range.start;
    let failed = |source| UnpackError::Decompress { frame: number, source };
    BUFFERS.with_borrow_mut(|buffers| {
        let (decoder, raw) = match buffers {
            Some(buffers) => buffers,
            None => {
                let decoder = zstd::bulk::Decompressor::new().map_err(failed)?;
                let size = usize::try_from(frame::FRAME_SIZE).unwrap_or(usize::MAX);
                buffers.insert((decoder, vec![0; size]))
            }
        };
        // The buffer is the limit: a frame that has more is an error of the decoder's.
        let found = decoder.decompress_to_buffer(compressed, &mut raw[..]).map_err(failed)?;
        if found as u64 != length {
            return Err(UnpackError::Length { frame: number, found, expected: length });
        }
        let digest = blake3::hash(&raw[..found]);
        if digest != expected.digest {
            return Err(UnpackError::Digest { frame: number, found: digest, expected: expected.digest });
        }
        Ok(take(&raw[..found], range.start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::PackJob;
    use crate::testing::noise;

    #[test]
    fn a_frame_is_given_only_if_it_is_whole_and_right() {
        let bytes = noise(3_000_000);
        let packed = PackJob { source: &bytes, size: 3_000_000, known: None }.blob(0, &|| false).unwrap();
        let table = FrameTable::new(3_000_000, vec![packed.blob.clone()]).unwrap();
        let frames = packed.blob.frames();
        let first = &packed.bytes[..frames[0].compressed as usize];
        let second = &packed.bytes[frames[0].compressed as usize..];
        let take = |raw: &[u8], offset: u64| (raw.to_vec(), offset);
        assert!(unpack_frame(&table, 0, frames[0], first, take).unwrap() == (bytes[..2 << 20].to_vec(), 0));
        assert!(
            unpack_frame(&table, 1, frames[1], second, take).unwrap() == (bytes[2 << 20..].to_vec(), 2 << 20)
        );

        let refused = |number, frame, bytes: &[u8]| {
            unpack_frame(&table, number, frame, bytes, |_, _| panic!("nothing is given")).unwrap_err()
        };
        assert!(matches!(refused(0, frames[1], first), UnpackError::Digest { frame: 0, .. }));
        assert!(matches!(refused(1, frames[1], first), UnpackError::Length { frame: 1, .. }));
        assert!(matches!(refused(0, frames[0], &first[1..]), UnpackError::Decompress { .. }));
        let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 3).unwrap();
        assert!(matches!(refused(0, frames[0], &bomb), UnpackError::Decompress { .. }));
    }

    #[test]
    fn flipped_bits_never_come_through() {
        let bytes = noise(100_000);
        let packed = PackJob { source: &bytes, size: 100_000, known: None }.blob(0, &|| false).unwrap();
        let table = FrameTable::new(100_000, vec![packed.blob.clone()]).unwrap();
        for at in (0..packed.bytes.len()).step_by(97) {
            let mut bad = packed.bytes.to_vec();
            bad[at] ^= 4;
            let got = unpack_frame(&table, 0, packed.blob.frames()[0], &bad, |raw, _| raw.to_vec());
            assert!(got.is_err() || got.unwrap() == bytes, "byte {at}");
        }
    }
}
