//! The digest of a sparse image: a layer of a disk, an image, or `memory.bin` of version 1.
//!
//! ```text
//!   the image    | block 0, 1 MiB | block 1 | … | last block, maybe shorter |
//!                       │            │                  │
//!                    blake3       blake3             blake3
//!                       └──────┬─────┴──────────────────┘
//!                        blake3 of these, one after another
//! ```
//!
//! Plain blake3 of the file would have to hash the holes too, and most of a VM's memory is one. Here a block that is zero has
//! a digest that is known, so a sparse image costs what its data costs; and blocks are independent, so they are read and
//! hashed on all cores.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use crate::digest::Digest;
use crate::files::{self, next_data};
use crate::page::BULK;
use crate::parallel;

/// Bytes in a block.
pub(crate) const BLOCK: usize = BULK;
const BLOCK_BYTES: u64 = BLOCK as u64;

/// The largest image, which is also the largest file of ext4. A hole costs 32 bytes of hashing for each block: a user who may
/// set a file's length must not keep us busy for hours.
pub(crate) const MAX_IMAGE: u64 = 16 << 40;

/// The digest of a block of zeroes.
static ZERO_BLOCK: LazyLock<Digest> = LazyLock::new(|| Digest::of(&vec![0; BLOCK]));

/// Takes the blocks of an image in order.
#[derive(Debug)]
pub(crate) struct ImageHasher {
    blocks: blake3::Hasher,
}

impl ImageHasher {
    pub fn new() -> ImageHasher {
        ImageHasher { blocks: blake3::Hasher::new() }
    }

    /// Adds the digest of a block; only the last block may be shorter than [`BLOCK`].
    pub fn block(&mut self, digest: &Digest) {
        self.blocks.update(digest.as_bytes());
    }

    /// Adds whole blocks that are zero.
    pub fn zero_blocks(&mut self, count: u64) {
        for _ in 0..count {
            self.blocks.update(ZERO_BLOCK.as_bytes());
        }
    }

    pub fn finish(&self) -> Digest {
        Digest::from_bytes(*self.blocks.finalize().as_bytes())
    }
}

impl Digest {
    /// The size of a sparse image and its digest, which is not that of the bytes one after another: holes cost nothing, and
    /// all cores work on the rest.
    pub fn of_image(file: &File) -> io::Result<(u64, Digest)> {
        let length = files::length(file)?;
        Ok((length, of_file(file, length)?))
    }
}

/// The digest of a file of `length` bytes, on all cores.
pub(crate) fn of_file(file: &File, length: u64) -> io::Result<Digest> {
    of_file_unless(file, length, &|| false)
}

/// The same, which fails soon after it is cancelled.
pub(crate) fn of_file_unless(
    file: &File,
    length: u64,
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> io::Result<Digest> {
    if length > MAX_IMAGE {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let data = data_blocks(file, length);
    let hashed = hash_blocks(file, length, &data, is_cancelled)?;
    let mut hasher = ImageHasher::new();
    let mut next = 0;
    for (block, digest) in data.into_iter().zip(hashed) {
        hasher.zero_blocks(block - next);
        hasher.block(&digest);
        next = block + 1;
    }
    hasher.zero_blocks(length / BLOCK_BYTES - next.min(length / BLOCK_BYTES));
    Ok(hasher.finish())
}

/// The blocks that are not wholly holes. The last one, if it is shorter, always counts as data: its digest is not known.
fn data_blocks(file: &File, length: u64) -> Vec<u64> {
    let whole = length / BLOCK_BYTES;
    let mut blocks = Vec::new();
    let mut offset = 0;
    while offset < whole * BLOCK_BYTES {
        match next_data(file, offset) {
            Some(data) if data < whole * BLOCK_BYTES => {
                let block = data / BLOCK_BYTES;
                blocks.push(block);
                offset = (block + 1) * BLOCK_BYTES;
            }
            _ => break,
        }
    }
    if !length.is_multiple_of(BLOCK_BYTES) {
        blocks.push(whole);
    }
    blocks
}

/// The digests of `blocks`, in their order.
fn hash_blocks(
    file: &File,
    length: u64,
    blocks: &[u64],
    is_cancelled: &(dyn Fn() -> bool + Sync),
) -> io::Result<Vec<Digest>> {
    let buffer = usize::try_from(length.min(BLOCK_BYTES)).map_err(io::Error::other)?;
    parallel::for_each(
        blocks.len(),
        || vec![0; buffer],
        |buffer, index| {
            if is_cancelled() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let offset = blocks[index] * BLOCK_BYTES;
            let size = usize::try_from((length - offset).min(BLOCK_BYTES)).map_err(io::Error::other)?;
            file.read_exact_at(&mut buffer[..size], offset)?;
            Ok(Digest::of(&buffer[..size]))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What the picture says, the slow way.
    fn oracle(bytes: &[u8]) -> Digest {
        let blocks: Vec<u8> = bytes.chunks(BLOCK).flat_map(|block| *blake3::hash(block).as_bytes()).collect();
        Digest::of(&blocks)
    }

    fn sparse(length: u64, writes: &[(u64, u8)]) -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        let mut bytes = vec![0; usize::try_from(length).unwrap()];
        for &(at, value) in writes.iter().filter(|(at, _)| *at < length) {
            file.write_all_at(&[value], at).unwrap();
            bytes[usize::try_from(at).unwrap()] = value;
        }
        (file, bytes)
    }

    #[test]
    fn holes_and_written_zeroes_have_one_digest() {
        let length = 5 * BLOCK_BYTES + 4096;
        let (sparse, bytes) = sparse(length, &[(2 * BLOCK_BYTES + 5, 1)]);
        let dense = tempfile::tempfile().unwrap();
        dense.write_all_at(&bytes, 0).unwrap();
        assert_eq!(of_file(&sparse, length).unwrap(), oracle(&bytes));
        assert_eq!(of_file(&dense, length).unwrap(), oracle(&bytes));
    }

    #[test]
    fn a_terabyte_of_hole_is_not_read() {
        let length = 1 << 40;
        let file = tempfile::tempfile().unwrap();
        file.set_len(length).unwrap();
        file.write_all_at(b"data", length / 2).unwrap();
        let mut hasher = ImageHasher::new();
        hasher.zero_blocks(length / 2 / BLOCK_BYTES);
        let mut block = vec![0; BLOCK];
        block[..4].copy_from_slice(b"data");
        hasher.block(&Digest::of(&block));
        hasher.zero_blocks(length / 2 / BLOCK_BYTES - 1);
        assert_eq!(of_file(&file, length).unwrap(), hasher.finish());
    }

    #[test]
    fn a_file_that_shrinks_meanwhile_is_an_error() {
        let (file, _) = sparse(4096, &[(0, 1)]);
        assert!(of_file(&file, 8192).is_err());
        assert_eq!(of_file(&file, 0).unwrap(), oracle(b""));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_image_has_the_digest_of_the_picture(
            pages in 0u64..1500,
            writes in proptest::collection::vec((0u64..6 << 20, 1u8..), 0..5),
        ) {
            let (file, bytes) = sparse(pages * 4096, &writes);
            prop_assert_eq!(of_file(&file, pages * 4096).unwrap(), oracle(&bytes));
        }
    }
}
