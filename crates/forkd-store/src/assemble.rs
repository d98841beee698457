//! A chain's memory, brought together: each page once, from the newest layer that has it.
//!
//! The work is cut into jobs that all cores do. A job of a snapshot with frames is one frame: it is read, checked, and those of its pages
//! go to their places that no newer layer has. A frame without such pages is not read at all. Snapshots of version 1 were checked as a
//! whole when the chain was opened; of them a job is up to 1 MiB.

use std::io;
use std::os::unix::fs::FileExt;

use crate::chain::Chain;
use crate::files;
use crate::frame::{FRAME, FRAME_PAGES};
use crate::layout::{Layout, PAGE_BYTES, PAGE_SIZE};
use crate::manifest::Content;
use crate::overlay::{Extent, Origin};
use crate::page::{BULK_PAGES, PageSink, PageSource, runs};
use crate::parallel;
use crate::snapshot::OpenError;

/// The memory was not assembled. What the sink has is of no use.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    #[error(transparent)]
    Memory(#[from] OpenError),
    #[error("cannot put page {page} into the memory")]
    Sink { page: u64, source: io::Error },
}

/// Pages of a file that go to one place.
#[derive(Debug, Clone, Copy)]
struct Piece {
    layer: usize,
    /// Where they are in `memory.bin`.
    page: u64,
    /// Where they go.
    first: u64,
    count: u64,
}

impl Chain {
    /// Delivers every page to `sink`, from several threads and in no order.
    pub fn assemble(&self, sink: &dyn PageSink) -> Result<(), AssembleError> {
        let output = Output { layout: self.layout(), sink };
        for extent in self.extents().iter().filter(|extent| extent.origin == Origin::Zero) {
            output.zero(extent.first, extent.count)?;
        }
        let mut pieces: Vec<Piece> = self.extents().iter().flat_map(|extent| self.pieces(*extent)).collect();
        pieces.sort_unstable_by_key(|piece| (piece.layer, piece.page));
        let jobs: Vec<&[Piece]> = pieces.chunk_by(|one, next| self.is_one_job(one, next)).collect();
        parallel::for_each(
            jobs.len(),
            || vec![0; FRAME],
            |buffer, index| self.deliver(jobs[index], buffer, &output),
        )?;
        Ok(())
    }

    fn has_frames(&self, layer: usize) -> bool {
        matches!(self.snapshots()[layer].manifest().content, Content::Framed { .. })
    }

    /// Cuts an extent at the borders of frames, or where a job without frames gets too large.
    fn pieces(&self, extent: Extent) -> impl Iterator<Item = Piece> {
        let mut rest = extent;
        std::iter::from_fn(move || {
            let Origin::Layer { layer, page } = rest.origin else { return None };
            let border = if self.has_frames(layer) { FRAME_PAGES } else { BULK_PAGES };
            let count = rest.count.min(border - page % border);
            let piece = Piece { layer, page, first: rest.first, count };
            rest = rest.skip(count);
            (count > 0).then_some(piece)
        })
    }

    fn is_one_job(&self, one: &Piece, next: &Piece) -> bool {
        one.layer == next.layer
            && self.has_frames(one.layer)
            && one.page / FRAME_PAGES == next.page / FRAME_PAGES
    }

    fn deliver(&self, pieces: &[Piece], buffer: &mut [u8], output: &Output<'_>) -> Result<(), AssembleError> {
        // A job has at least one.
        let Piece { layer, page, count, .. } = pieces[0];
        let snapshot = &self.snapshots()[layer];
        let (bytes, begin) = if self.has_frames(layer) {
            let frame = page / FRAME_PAGES;
            (snapshot.read_frame(frame, buffer)?, frame * FRAME_PAGES)
        } else {
            let bytes = &mut buffer[..bytes_of(count)];
            let read = snapshot.memory_file().read_exact_at(bytes, page * PAGE_BYTES);
            let path = || snapshot.path(files::MEMORY);
            read.map_err(|source| OpenError::Io { path: path(), source })?;
            (&*bytes, page)
        };
        for piece in pieces {
            let at = bytes_of(piece.page - begin);
            output.pages(piece.first, &bytes[at..at + bytes_of(piece.count)])?;
        }
        Ok(())
    }
}

/// Of at most a frame.
fn bytes_of(pages: u64) -> usize {
    usize::try_from(pages).unwrap_or(usize::MAX) * PAGE_SIZE
}

/// A sink whose calls are cut at the borders of regions.
struct Output<'a> {
    layout: &'a Layout,
    sink: &'a dyn PageSink,
}

impl Output<'_> {
    fn zero(&self, mut first: u64, mut count: u64) -> Result<(), AssembleError> {
        while count > 0 {
            let now = self.layout.within_region(first, count);
            let zeroed = self.sink.zero(first, now);
            zeroed.map_err(|source| AssembleError::Sink { page: first, source })?;
            first += now;
            count -= now;
        }
        Ok(())
    }

    /// Delivers pages of which some may be zero: version 1 on a file system without holes has them all.
    fn pages(&self, first: u64, pages: &[u8]) -> Result<(), AssembleError> {
        for (run, zero) in runs(pages) {
            let mut page = first + (run.start / PAGE_SIZE) as u64;
            let mut count = (run.len() / PAGE_SIZE) as u64;
            if zero {
                self.zero(page, count)?;
                continue;
            }
            let mut rest = &pages[run];
            while count > 0 {
                let now = self.layout.within_region(page, count);
                let (written, later) = rest.split_at(bytes_of(now));
                self.sink.write(page, written).map_err(|source| AssembleError::Sink { page, source })?;
                rest = later;
                page += now;
                count -= now;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Memory, TestStore, memory, tag};
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::sync::Mutex;

    /// Notes what it is told.
    #[derive(Default)]
    struct Notes {
        written: Mutex<Vec<(u64, usize)>>,
        zeroed: Mutex<Vec<(u64, u64)>>,
        full: bool,
    }

    impl PageSink for Notes {
        fn write(&self, first: u64, pages: &[u8]) -> io::Result<()> {
            if self.full {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.written.lock().unwrap().push((first, pages.len() / PAGE_SIZE));
            Ok(())
        }

        fn zero(&self, first: u64, count: u64) -> io::Result<()> {
            self.zeroed.lock().unwrap().push((first, count));
            Ok(())
        }
    }

    fn sorted<T: Ord>(notes: Mutex<Vec<T>>) -> Vec<T> {
        let mut notes = notes.into_inner().unwrap();
        notes.sort();
        notes
    }

    #[test]
    fn each_page_is_delivered_once_and_zero_pages_are_not_written() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[0, 1, 2, 0, 0, 3, 4, 5]));
        store.diff("diff", &base, &memory(&[0, 1, 2, 0, 0, 3, 0, 6]));
        let notes = Notes::default();
        Chain::load(&store, &tag("diff")).unwrap().assemble(&notes).unwrap();
        assert_eq!(sorted(notes.written), [(1, 2), (5, 1), (7, 1)]);
        assert_eq!(sorted(notes.zeroed), [(0, 1), (3, 2), (6, 1)]);
    }

    /// Memory of several frames, of which a diff hides some pages, some frames wholly.
    #[test]
    fn frames_are_checked_as_they_are_read_and_hidden_ones_are_not_read() {
        let store = TestStore::new();
        let mut content = Memory::of_regions(&[1500, 600]);
        (0..2100).for_each(|page| content.set(page, u8::try_from(page % 251 + 1).unwrap()));
        let base = store.full("base", &content);
        (512..1024).chain([3, 1499, 1500]).for_each(|page| content.set(page, 255));
        store.diff("head", &base, &content);
        let assemble = |name: &str| {
            let found = Memory::of_regions(&[1500, 600]);
            Chain::load(&store, &tag(name)).unwrap().assemble(&found).map(|()| found.received())
        };
        assert!(assemble("head").unwrap() == content);

        let path = store.path().join("base/memory.bin");
        let file = fs::File::options().write(true).open(&path).unwrap();
        let good = fs::read(&path).unwrap();
        for frame in 0..5_usize {
            let at = frame * FRAME + 77;
            file.write_all_at(&[good[at] ^ 1], at as u64).unwrap();
            let error = assemble("base").unwrap_err();
            let AssembleError::Memory(OpenError::Frame { index, path: found, .. }) = &error else {
                panic!("{error}")
            };
            assert_eq!((*index, found), (frame as u64, &path));
            // All pages of frame 1 are the diff's own.
            assert_eq!(assemble("head").is_ok(), frame == 1, "frame {frame}");
            file.write_all_at(&good[at..=at], at as u64).unwrap();
        }
        assemble("base").unwrap();
    }

    #[test]
    fn snapshots_of_version_1_are_whole_before_they_are_read() {
        let (store, content) = TestStore::of_version_1();
        for (name, expected) in [("base", &content[0]), ("head", &content[1])] {
            let found = Memory::of_regions(&[3, 2]);
            Chain::load(&store, &tag(name)).unwrap().assemble(&found).unwrap();
            assert_eq!(found.received(), *expected, "{name}");
        }
        // A diff of today's format over them.
        let mut newest = content[1].clone();
        newest.set(1, 0);
        newest.set(4, 9);
        store.diff("newest", &store.link("head"), &newest);
        let found = Memory::of_regions(&[3, 2]);
        Chain::load(&store, &tag("newest")).unwrap().assemble(&found).unwrap();
        assert_eq!(found.received(), newest);
        for name in ["base", "head"] {
            let path = store.path().join(name).join("memory.bin");
            let mut bytes = fs::read(&path).unwrap();
            bytes[5000] ^= 1;
            fs::write(&path, &bytes).unwrap();
            let error = Chain::load(&store, &tag("newest")).unwrap_err();
            assert!(error.to_string().contains(&format!("{name}/memory.bin is damaged")), "{error}");
            bytes[5000] ^= 1;
            fs::write(&path, &bytes).unwrap();
        }
    }

    #[test]
    fn a_sink_that_fails_is_told_from_a_file_that_does() {
        let store = TestStore::new();
        store.full("base", &memory(&[0, 1, 2]));
        let chain = Chain::load(&store, &tag("base")).unwrap();
        let notes = Notes { full: true, ..Notes::default() };
        let error = chain.assemble(&notes).unwrap_err();
        assert_eq!(error.to_string(), "cannot put page 1 into the memory");
        let file = fs::File::options().write(true).open(store.path().join("base/memory.bin"));
        file.unwrap().set_len(PAGE_BYTES).unwrap();
        let error = chain.assemble(&Notes::default()).unwrap_err();
        assert!(matches!(error, AssembleError::Memory(OpenError::Io { .. })), "{error}");
    }
}
