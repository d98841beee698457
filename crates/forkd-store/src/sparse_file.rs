//! A sparse file, an image or a layer of a disk, as it travels: the pages that are not zero, one after another, and a map of them.
//!
//! ```text
//!   the file    │ a . . b c . d │        .: zero, or a hole
//!   packed      │ a b c d │              map: 0 +1, 3 +2, 6 +1
//! ```
//!
//! Contents decide which pages are packed, and not where a file system has holes, so the same contents are packed alike on every host.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::files;
use crate::layout::{PAGE_BYTES, PAGE_SIZE};
use crate::overlay::{self, Origin};
use crate::page::{BULK, BULK_PAGES, is_zero};
use crate::page_map::{PageMap, PageMapError, Run, RunKind};

/// A sparse file that is read or written through its packed pages.
#[derive(Debug)]
pub struct PackedFile {
    file: File,
    /// Bytes of the file. The last page may reach beyond it, and is zero there.
    size: u64,
    map: PageMap,
    /// Where each run begins among the packed pages.
    begins: Vec<u64>,
}

impl PackedFile {
    /// Looks at every page of a file that does not change.
    pub fn pack(file: File) -> io::Result<PackedFile> {
        let size = files::length(&file)?;
        let pages = size.div_ceil(PAGE_BYTES);
        let mut map = PageMap::new(pages);
        data_pages(&file, size, |page, _| map.push(page, RunKind::Data).map_err(io::Error::other))?;
        Ok(PackedFile::new(file, size, map))
    }

    /// An empty file of `size` bytes that gets the pages of a map. The map is checked: it may be anybody's.
    pub fn unpack(file: File, size: u64, map: PageMap) -> Result<PackedFile, SparseError> {
        let (found, expected) = (map.memory_pages(), size.div_ceil(PAGE_BYTES));
        if found != expected {
            return Err(SparseError::Pages { found, expected });
        }
        if map.runs().iter().any(|run| run.kind == RunKind::Zero) {
            return Err(SparseError::ZeroRuns);
        }
        file.set_len(size)?;
        Ok(PackedFile::new(file, size, map))
    }

    fn new(file: File, size: u64, map: PageMap) -> PackedFile {
        let mut next = 0;
        let begins = map.runs().iter().map(|run| {
            let begin = next;
            next += u64::from(run.count);
            begin
        });
        let begins = begins.collect();
        PackedFile { file, size, map, begins }
    }

    pub fn map(&self) -> &PageMap {
        &self.map
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Bytes of the packed pages.
    pub fn length(&self) -> u64 {
        self.map.data_pages() * PAGE_BYTES
    }

    /// Reads packed bytes.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        for (at, length) in self.pieces(offset, buffer.len()) {
            let piece = &mut buffer[done..done + length];
            // The file may end within its last page.
            let there = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX).min(length);
            self.file.read_exact_at(&mut piece[..there], at)?;
            piece[there..].fill(0);
            done += length;
        }
        if done == buffer.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Writes packed bytes to their places.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        for (at, length) in self.pieces(offset, bytes.len()) {
            let there = usize::try_from(self.size.saturating_sub(at)).unwrap_or(usize::MAX).min(length);
            self.file.write_all_at(&bytes[done..done + there], at)?;
            done += length;
        }
        if done == bytes.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    /// Where packed bytes are in the file: offsets and lengths. They end with the last run.
    fn pieces(&self, offset: u64, length: usize) -> impl Iterator<Item = (u64, usize)> {
        let mut index = self.begins.partition_point(|begin| begin * PAGE_BYTES <= offset).saturating_sub(1);
        let (mut offset, mut left) = (offset, length);
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let (Run { first, count, .. }, begin) =
                (*self.map.runs().get(index)?, self.begins[index] * PAGE_BYTES);
            let inside = offset.checked_sub(begin)?;
            let rest = (u64::from(count) * PAGE_BYTES).checked_sub(inside)?;
            let now = usize::try_from(rest).unwrap_or(usize::MAX).min(left);
            let piece = (first * PAGE_BYTES + inside, now);
            offset += now as u64;
            left -= now;
            index += 1;
            Some(piece)
        })
    }
}

/// Calls `each` with the number and the bytes of every page of a file of `size` bytes that is not zero. The last may be shorter.
pub(crate) fn data_pages(
    file: &File,
    size: u64,
    mut each: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; BULK];
    for mut extent in overlay::sparse(file, size.div_ceil(PAGE_BYTES)) {
        while let Origin::Layer { page, .. } = extent.origin
            && extent.count > 0
        {
            let count = extent.count.min(BULK_PAGES);
            let length = (count * PAGE_BYTES).min(size - page * PAGE_BYTES);
            let bytes = &mut buffer[..usize::try_from(length).map_err(io::Error::other)?];
            file.read_exact_at(bytes, page * PAGE_BYTES)?;
            for (page, bytes) in (page..).zip(bytes.chunks(PAGE_SIZE)).filter(|(_, bytes)| !is_zero(bytes)) {
                each(page, bytes)?;
            }
            extent = extent.skip(count);
        }
    }
    Ok(())
}

/// A map is not one of this file.
#[derive(Debug, thiserror::Error)]
pub enum SparseError {
    #[error("the map cannot be used")]
    Map(#[from] PageMapError),
    #[error("a map of {found} pages, expected {expected}")]
    Pages { found: u64, expected: u64 },
    #[error("a map with pages that have become zero, expected only those that are not")]
    ZeroRuns,
    #[error("cannot set the length of the file")]
    File(#[from] io::Error),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sparse(size: u64, writes: &[(u64, u8)]) -> (File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        file.set_len(size).unwrap();
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        for &(at, value) in writes.iter().filter(|(at, _)| *at < size) {
            file.write_all_at(&[value], at).unwrap();
            bytes[usize::try_from(at).unwrap()] = value;
        }
        (file, bytes)
    }

    fn contents(file: &File) -> Vec<u8> {
        files::read(file, files::length(file).unwrap()).unwrap()
    }

    #[test]
    fn written_zeroes_are_packed_like_holes() {
        let (holes, bytes) = sparse(10 * PAGE_BYTES, &[(5, 1), (3 * PAGE_BYTES, 2), (4 * PAGE_BYTES + 1, 3)]);
        let dense = tempfile::tempfile().unwrap();
        dense.write_all_at(&bytes, 0).unwrap();
        let [holes, dense] = [holes, dense].map(|file| PackedFile::pack(file).unwrap());
        assert_eq!(holes.map(), dense.map());
        assert_eq!(holes.length(), 3 * PAGE_BYTES);
    }

    #[test]
    fn a_map_that_does_not_fit_is_refused() {
        let unpack = |map| PackedFile::unpack(tempfile::tempfile().unwrap(), 3 * PAGE_BYTES, map);
        assert!(matches!(unpack(PageMap::new(4)), Err(SparseError::Pages { found: 4, expected: 3 })));
        let mut zero = PageMap::new(3);
        zero.push(1, RunKind::Zero).unwrap();
        assert!(matches!(unpack(zero), Err(SparseError::ZeroRuns)));
        let empty = unpack(PageMap::new(3)).unwrap();
        assert!(empty.write_at(b"x", 0).is_err(), "beyond the last page");
        assert!(empty.write_at(b"", 0).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_file_is_unpacked_to_what_it_was(
            size in 1u64..40 * PAGE_BYTES,
            writes in proptest::collection::vec((0u64..40 * PAGE_BYTES, 1u8..), 0..20),
            cut in 1usize..9000,
        ) {
            let (file, bytes) = sparse(size, &writes);
            let packed = PackedFile::pack(file).unwrap();
            let map = PageMap::parse(&packed.map().encode()).unwrap();
            let unpacked = PackedFile::unpack(tempfile::tempfile().unwrap(), size, map).unwrap();
            let mut all = vec![0; usize::try_from(packed.length()).unwrap()];
            packed.read_at(&mut all, 0).unwrap();
            let mut offset = 0;
            for piece in all.chunks(cut) {
                let mut read = vec![0; piece.len()];
                packed.read_at(&mut read, offset).unwrap();
                prop_assert_eq!(&read[..], piece);
                unpacked.write_at(piece, offset).unwrap();
                offset += piece.len() as u64;
            }
            prop_assert_eq!(contents(unpacked.file()), bytes);
            prop_assert!(packed.read_at(&mut [0; 1], packed.length()).is_err());
        }
    }
}
