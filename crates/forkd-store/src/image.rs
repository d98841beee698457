//! `memory.bin` as it is written: pages one after another. Nothing is hashed here: that is done once, by the owner of the store, when
//! no process can write to the file any more (`seal.rs`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::page::BULK;

/// Pages that are collected, and written 1 MiB at a time.
#[derive(Debug)]
pub(crate) struct PackedImage<'a> {
    file: &'a File,
    /// What of the file was written.
    length: u64,
    buffer: Vec<u8>,
}

impl<'a> PackedImage<'a> {
    pub fn new(file: &'a File) -> PackedImage<'a> {
        PackedImage { file, length: 0, buffer: Vec::with_capacity(BULK) }
    }

    /// Adds a page.
    pub fn push(&mut self, page: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(page);
        if self.buffer.len() < BULK {
            return Ok(());
        }
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.length)?;
        self.length += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest, and brings all of it to the disk.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::PAGE_SIZE;

    #[test]
    fn a_packed_image_is_its_pages() {
        for count in [0, 1, 255, 256, 257, 513] {
            let file = tempfile::tempfile().unwrap();
            let mut image = PackedImage::new(&file);
            let mut expected = Vec::new();
            for number in 0..count {
                let page = vec![u8::try_from(number % 251).unwrap(); PAGE_SIZE];
                image.push(&page).unwrap();
                expected.extend(page);
            }
            image.finish().unwrap();
            let mut found = vec![0; expected.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            assert!(found == expected, "{count} pages");
            assert_eq!(file.metadata().unwrap().len(), expected.len() as u64);
        }
    }
}
