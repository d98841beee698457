//! `memory.bin` as it is written: a sparse image of all pages, or the pages of a diff one after another.
//!
//! Both hash what they write, so the file is not read again, and hold no more than one block of it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::digest::Digest;
use crate::image_digest::{BLOCK, ImageHasher};
use crate::layout::{PAGE_BYTES, PAGE_SIZE};
use crate::page::{BULK_PAGES, runs};

const BLOCK_BYTES: u64 = BLOCK as u64;

/// A full image. Pages come in ascending order; those that never come are zero.
#[derive(Debug)]
pub(crate) struct FullImage<'a> {
    file: &'a File,
    hasher: ImageHasher,
    length: u64,
    /// The number of the block in `buffer`.
    block: u64,
    buffer: Vec<u8>,
    /// Whether anything was put into `buffer`.
    touched: bool,
}

impl<'a> FullImage<'a> {
    pub fn new(file: &'a File, pages: u64) -> io::Result<FullImage<'a>> {
        let length = pages * PAGE_BYTES;
        file.set_len(length)?;
        Ok(FullImage {
            file,
            hasher: ImageHasher::new(),
            length,
            block: 0,
            buffer: vec![0; BLOCK],
            touched: false,
        })
    }

    /// How many of `count` pages from `first` on fit one call of [`FullImage::pages`].
    pub fn within_block(first: u64, count: u64) -> u64 {
        count.min(BULK_PAGES - first % BULK_PAGES)
    }

    /// The place for `count` pages from `first` on, which are not before any that came already.
    pub fn pages(&mut self, first: u64, count: u64) -> io::Result<&mut [u8]> {
        let block = first / BULK_PAGES;
        if block > self.block {
            self.flush()?;
            self.hasher.zero_blocks(block - self.block);
            self.block = block;
        }
        self.touched = true;
        let begin = usize::try_from(first % BULK_PAGES).map_err(io::Error::other)? * PAGE_SIZE;
        let end = begin + usize::try_from(count).map_err(io::Error::other)? * PAGE_SIZE;
        match self.buffer.get_mut(begin..end) {
            Some(place) if block == self.block => Ok(place),
            _ => Err(io::Error::other("pages that go backwards or past a block")),
        }
    }

    /// Writes the data of the current block and leaves its zeroes as holes.
    fn flush(&mut self) -> io::Result<()> {
        if !self.touched {
            return Ok(());
        }
        let offset = self.block * BLOCK_BYTES;
        let size = usize::try_from((self.length - offset).min(BLOCK_BYTES)).map_err(io::Error::other)?;
        let bytes = &self.buffer[..size];
        for (run, zero) in runs(bytes) {
            if !zero {
                self.file.write_all_at(&bytes[run.clone()], offset + run.start as u64)?;
            }
        }
        self.hasher.block(bytes);
        self.buffer.fill(0);
        self.touched = false;
        self.block += 1;
        Ok(())
    }

    /// Writes what is left; returns the digest of the image.
    pub fn finish(mut self) -> io::Result<Digest> {
        self.flush()?;
        let whole = self.length / BLOCK_BYTES;
        self.hasher.zero_blocks(whole.saturating_sub(self.block));
        let rest = self.length % BLOCK_BYTES;
        if rest > 0 && self.block <= whole {
            let rest = usize::try_from(rest).map_err(io::Error::other)?;
            // The buffer was flushed, so it is zero.
            self.hasher.block(&self.buffer[..rest]);
        }
        Ok(self.hasher.finish())
    }
}

/// The pages of a diff.
#[derive(Debug)]
pub(crate) struct PackedImage<'a> {
    file: &'a File,
    hasher: ImageHasher,
    /// What of the file was written.
    length: u64,
    buffer: Vec<u8>,
}

impl<'a> PackedImage<'a> {
    pub fn new(file: &'a File) -> PackedImage<'a> {
        PackedImage { file, hasher: ImageHasher::new(), length: 0, buffer: Vec::with_capacity(BLOCK) }
    }

    /// Adds a page.
    pub fn push(&mut self, page: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(page);
        if self.buffer.len() < BLOCK {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.buffer.is_empty() {
            self.file.write_all_at(&self.buffer, self.length)?;
            self.hasher.block(&self.buffer);
            self.length += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Writes what is left; returns the length and the digest of the image.
    pub fn finish(mut self) -> io::Result<(u64, Digest)> {
        self.flush()?;
        Ok((self.length, self.hasher.finish()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image_digest;
    use std::os::unix::fs::MetadataExt;

    fn page(value: u8) -> Vec<u8> {
        vec![value; PAGE_SIZE]
    }

    /// A full image of `length` pages with one byte value on each of some pages.
    fn full(length: u64, pages: &[(u64, u8)]) -> (File, Digest) {
        let file = tempfile::tempfile().unwrap();
        let mut image = FullImage::new(&file, length).unwrap();
        for &(number, value) in pages {
            image.pages(number, 1).unwrap().copy_from_slice(&page(value));
        }
        let digest = image.finish().unwrap();
        (file, digest)
    }

    #[test]
    fn a_full_image_is_sparse_and_its_digest_is_the_file_s() {
        for length in [3, 255, 256, 257, 600, 1024] {
            for pages in
                [vec![], vec![(0, 1)], vec![(length - 1, 9)], vec![(0, 1), (length / 2, 0), (length - 1, 3)]]
            {
                let (file, digest) = full(length, &pages);
                let metadata = file.metadata().unwrap();
                assert_eq!(metadata.len(), length * PAGE_BYTES);
                assert_eq!(
                    digest,
                    image_digest::of_file(&file, metadata.len()).unwrap(),
                    "{length} {pages:?}"
                );
                let data = pages.iter().filter(|(_, value)| *value != 0).count() as u64;
                assert!(metadata.blocks() * 512 <= data * PAGE_BYTES, "{length} {pages:?}");
                for (number, value) in pages {
                    let mut found = page(0);
                    file.read_exact_at(&mut found, number * PAGE_BYTES).unwrap();
                    assert!(found == page(value), "page {number} of {length}");
                }
            }
        }
    }

    #[test]
    fn pages_that_go_backwards_are_an_error() {
        let file = tempfile::tempfile().unwrap();
        let mut image = FullImage::new(&file, 1024).unwrap();
        image.pages(512, 1).unwrap();
        assert!(image.pages(5, 1).is_err());
        assert!(image.pages(700, 200).is_err());
    }

    #[test]
    fn a_packed_image_is_its_pages() {
        for count in [0, 1, 255, 256, 257, 513] {
            let file = tempfile::tempfile().unwrap();
            let mut image = PackedImage::new(&file);
            for number in 0..count {
                image.push(&page(u8::try_from(number % 251).unwrap())).unwrap();
            }
            let (length, digest) = image.finish().unwrap();
            assert_eq!(length, count * PAGE_BYTES);
            assert_eq!(file.metadata().unwrap().len(), length);
            assert_eq!(digest, image_digest::of_file(&file, length).unwrap());
        }
    }
}
