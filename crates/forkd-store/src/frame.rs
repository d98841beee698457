//! Frames: the pieces in which packed memory is hashed, checked, compressed and sent.
//!
//! ```text
//!   memory.bin   | frame 0, 2 MiB | frame 1 | … | last frame, maybe shorter |
//!                       │            │                  │
//!                    blake3       blake3             blake3           in memory.map
//!                       └──────┬─────┴──────────────────┘
//!                        blake3 of these, one after another           in manifest.json
//! ```
//!
//! A reader of a part of the memory reads the frames that it is in and can check each one. So no file is read twice, once to check it
//! and once to use it, and the frames can be checked on all cores.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::digest::Digest;
use crate::layout::PAGE_BYTES;
use crate::parallel;

/// Bytes in a frame.
pub(crate) const FRAME: usize = 2 << 20;
const FRAME_BYTES: u64 = FRAME as u64;
/// Pages in a frame.
pub(crate) const FRAME_PAGES: u64 = FRAME_BYTES / PAGE_BYTES;

/// How many frames a file of `length` bytes has.
pub(crate) fn count(length: u64) -> u64 {
    length.div_ceil(FRAME_BYTES)
}

/// The digest of a file whose frames have these digests.
pub(crate) fn digest_of(frames: &[Digest]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    frames.iter().for_each(|frame| {
        hasher.update(frame.as_bytes());
    });
    Digest::from_bytes(*hasher.finalize().as_bytes())
}

/// Reads a frame of a file of `length` bytes into a buffer of [`FRAME`] bytes. Returns the part of it that the frame takes.
pub(crate) fn read<'a>(file: &File, length: u64, frame: u64, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let offset = frame * FRAME_BYTES;
    let size = usize::try_from(length.saturating_sub(offset).min(FRAME_BYTES)).map_err(io::Error::other)?;
    let bytes = &mut buffer[..size];
    file.read_exact_at(bytes, offset)?;
    Ok(bytes)
}

/// The digests of the frames of a file of `length` bytes, on all cores.
pub(crate) fn digests(file: &File, length: u64) -> io::Result<Vec<Digest>> {
    let frames = usize::try_from(count(length)).map_err(io::Error::other)?;
    parallel::for_each(
        frames,
        || vec![0; FRAME],
        |buffer, index| Ok(Digest::of(read(file, length, index as u64, buffer)?)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_2_mib_and_the_last_is_shorter() {
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..2 * FRAME + 5000).map(|at| u8::try_from(at % 251).unwrap()).collect();
        file.write_all_at(&bytes, 0).unwrap();
        let found = digests(&file, bytes.len() as u64).unwrap();
        let expected: Vec<_> = bytes.chunks(FRAME).map(Digest::of).collect();
        assert_eq!(found, expected);
        let table: Vec<u8> = expected.iter().flat_map(|digest| *digest.as_bytes()).collect();
        assert_eq!(digest_of(&found), Digest::of(&table));
        assert!(digests(&file, bytes.len() as u64 + 1).is_err(), "a file that has shrunk");
        assert_eq!(digests(&file, 0).unwrap(), []);
        assert_eq!((count(0), count(1), count(FRAME as u64), count(FRAME as u64 + 1)), (0, 1, 1, 2));
    }
}
