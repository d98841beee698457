//! A chain's memory, brought together: each page once, from the newest layer that has it.

use std::io;
use std::os::unix::fs::FileExt;

use crate::chain::Chain;
use crate::files::next_data;
use crate::layout::{Layout, PAGE_BYTES, PAGE_SIZE};
use crate::overlay::{Extent, Origin};
use crate::page::{BULK, BULK_PAGES, PageSink, PageSource, runs};

/// The memory was not assembled. What the sink has is of no use.
#[derive(Debug, thiserror::Error)]
pub enum AssembleError {
    #[error("cannot read the memory of snapshot {tag}")]
    Read { tag: String, source: io::Error },
    #[error("cannot put page {page} into the memory")]
    Sink { page: u64, source: io::Error },
}

impl Chain {
    /// Delivers every page to `sink`, in ascending order and up to 1 MiB at a time.
    pub fn assemble(&self, sink: &mut dyn PageSink) -> Result<(), AssembleError> {
        let mut output = Output { layout: self.layout(), sink };
        let mut buffer = vec![0; BULK];
        for extent in self.extents() {
            match extent.origin {
                Origin::Zero => output.zero(extent.first, extent.count)?,
                Origin::Layer { layer, .. } => self.copy(*extent, layer, &mut buffer, &mut output)?,
            }
        }
        Ok(())
    }

    fn copy(
        &self,
        mut extent: Extent,
        layer: usize,
        buffer: &mut [u8],
        output: &mut Output<'_>,
    ) -> Result<(), AssembleError> {
        let snapshot = &self.snapshots()[layer];
        let failed = |source| AssembleError::Read { tag: snapshot.manifest().tag.to_string(), source };
        let file = snapshot.memory_file();
        while extent.count > 0
            && let Origin::Layer { page, .. } = extent.origin
        {
            let data = next_data(file, page * PAGE_BYTES).map_or(u64::MAX, |offset| offset / PAGE_BYTES);
            let hole = (data - page).min(extent.count);
            if hole > 0 {
                output.zero(extent.first, hole)?;
                extent = extent.skip(hole);
                continue;
            }
            let count = extent.count.min(BULK_PAGES);
            let bytes =
                usize::try_from(count * PAGE_BYTES).map_err(|error| failed(io::Error::other(error)))?;
            let pages = &mut buffer[..bytes];
            file.read_exact_at(pages, page * PAGE_BYTES).map_err(failed)?;
            output.pages(extent.first, pages)?;
            extent = extent.skip(count);
        }
        Ok(())
    }
}

/// A sink whose calls are cut at the borders of regions.
struct Output<'a> {
    layout: &'a Layout,
    sink: &'a mut dyn PageSink,
}

impl Output<'_> {
    fn zero(&mut self, mut first: u64, mut count: u64) -> Result<(), AssembleError> {
        while count > 0 {
            let now = self.layout.within_region(first, count);
            let zeroed = self.sink.zero(first, now);
            zeroed.map_err(|source| AssembleError::Sink { page: first, source })?;
            first += now;
            count -= now;
        }
        Ok(())
    }

    /// Delivers pages of which some may be zero: a file system without holes has them all.
    fn pages(&mut self, first: u64, pages: &[u8]) -> Result<(), AssembleError> {
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
                let failed = |source| AssembleError::Sink { page, source };
                let bytes =
                    usize::try_from(now * PAGE_BYTES).map_err(|error| failed(io::Error::other(error)))?;
                let (written, later) = rest.split_at(bytes);
                self.sink.write(page, written).map_err(failed)?;
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
    use crate::testing::{TestStore, memory, tag};
    use std::fs;

    /// Notes what it is told.
    #[derive(Default)]
    struct Notes {
        written: Vec<(u64, usize)>,
        zeroed: Vec<(u64, u64)>,
        full: bool,
    }

    impl PageSink for Notes {
        fn write(&mut self, first: u64, pages: &[u8]) -> io::Result<()> {
            if self.full {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            self.written.push((first, pages.len() / PAGE_SIZE));
            Ok(())
        }

        fn zero(&mut self, first: u64, count: u64) -> io::Result<()> {
            self.zeroed.push((first, count));
            Ok(())
        }
    }

    #[test]
    fn zero_pages_are_not_written_whether_they_are_holes_or_not() {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[0, 1, 2, 0, 0, 3, 4, 5]));
        store.diff("diff", &base, &memory(&[0, 1, 2, 0, 0, 3, 0, 6]));
        let file = store.path().join("base/memory.bin");
        for dense in [false, true] {
            if dense {
                let bytes = fs::read(&file).unwrap();
                fs::remove_file(&file).unwrap();
                fs::write(&file, bytes).unwrap();
            }
            let mut notes = Notes::default();
            let chain = Chain::load(&store, &tag("diff")).unwrap();
            chain.assemble(&mut notes).unwrap();
            assert_eq!(notes.written, [(1, 2), (5, 1), (7, 1)], "dense: {dense}");
            assert_eq!(notes.zeroed, [(0, 1), (3, 2), (6, 1)], "dense: {dense}");
        }
    }

    #[test]
    fn a_sink_that_fails_is_told_from_a_file_that_does() {
        let store = TestStore::new();
        store.full("base", &memory(&[0, 1, 2]));
        let chain = Chain::load(&store, &tag("base")).unwrap();
        let mut notes = Notes { full: true, ..Notes::default() };
        let error = chain.assemble(&mut notes).unwrap_err();
        assert_eq!(error.to_string(), "cannot put page 1 into the memory");
        let file = fs::File::options().write(true).open(store.path().join("base/memory.bin"));
        file.unwrap().set_len(PAGE_BYTES * 2).unwrap();
        let error = chain.assemble(&mut Notes::default()).unwrap_err();
        assert_eq!(error.to_string(), "cannot read the memory of snapshot base");
    }
}
