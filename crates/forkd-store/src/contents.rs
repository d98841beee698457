//! The contents of a new snapshot, written into files that someone else has made. This half runs in the process that holds
//! the frozen VM's memory; it sees descriptors and no paths.
//!
//! It runs on the caller's thread and holds three blocks of memory at most, so a zygote can do it behind the forks it serves. It hashes
//! nothing: its digests would not be trusted.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use crate::files;
use crate::image::PackedImage;
use crate::layout::{PAGE_BYTES, PAGE_SIZE};
use crate::page::{BULK, BULK_PAGES, PageSource, is_zero};
use crate::page_map::{PageMap, RunKind};
use crate::state::{MAX_STATE, StateHeader};
use crate::write::{Observer, Step, WriteError, step};

/// The files of a new snapshot: they exist, are empty and can be written to.
#[derive(Debug)]
pub struct NewFiles {
    pub state: File,
    pub memory: File,
    /// Gets a page map without frames.
    pub runs: File,
}

/// What is written into them.
#[expect(missing_debug_implementations, reason = "a source of pages has nothing to show")]
pub struct NewContents<'a> {
    /// The caller's number for the encoding of `state`.
    pub state_version: u32,
    pub state: &'a [u8],
    pub memory: &'a dyn PageSource,
    /// The parent's memory: with it, only what differs is written.
    pub base: Option<&'a dyn PageSource>,
}

impl NewContents<'_> {
    /// Refuses what could only be written in vain.
    pub(crate) fn check(&self) -> Result<(), WriteError> {
        if (self.state.len() + StateHeader::LENGTH) as u64 > MAX_STATE {
            return Err(WriteError::StateTooLarge { found: self.state.len() });
        }
        match &self.base {
            Some(base) if base.layout() != self.memory.layout() => Err(WriteError::OtherMemory),
            _ => Ok(()),
        }
    }
}

/// Writes the state and the memory, and brings them to the disk.
///
/// `candidates` are the pages to look at, as ascending ranges that do not overlap: all that may differ from the base, or
/// without a base all that may not be zero. They only save time; contents decide what is stored. `observe` is told about
/// each step and can stop the writing.
pub fn write_contents(
    files: &NewFiles,
    new: &NewContents<'_>,
    candidates: &mut dyn Iterator<Item = Range<u64>>,
    observe: &mut Observer<'_>,
) -> Result<(), WriteError> {
    new.check()?;
    for (file, name) in
        [(&files.state, files::STATE), (&files.memory, files::MEMORY), (&files.runs, files::RUNS)]
    {
        check_empty(file).map_err(failed(name))?;
    }
    let header = StateHeader::new(new.state_version, new.state).encode();
    write_file(&files.state, &[&header, new.state]).map_err(failed(files::STATE))?;
    step(observe, Step::StateWritten)?;
    let map = write_memory(new, candidates, &files.memory, observe)?;
    step(observe, Step::MemoryWritten)?;
    write_file(&files.runs, &[&map.encode()]).map_err(failed(files::RUNS))?;
    step(observe, Step::RunsWritten)
}

pub(crate) fn failed(name: &'static str) -> impl FnOnce(io::Error) -> WriteError {
    move |source| WriteError::File { name, source }
}

/// What a file had before would show behind or between what is written.
fn check_empty(file: &File) -> io::Result<()> {
    match files::length(file)? {
        0 => Ok(()),
        _ => Err(io::ErrorKind::AlreadyExists.into()),
    }
}

/// Writes a small file and brings it to the disk.
pub(crate) fn write_file(file: &File, parts: &[&[u8]]) -> io::Result<()> {
    let mut at = 0;
    for part in parts {
        file.write_all_at(part, at)?;
        at += part.len() as u64;
    }
    file.sync_all()
}

/// Writes the pages that are not what they are without this snapshot: the parent's, or zero.
fn write_memory(
    new: &NewContents<'_>,
    candidates: &mut dyn Iterator<Item = Range<u64>>,
    file: &File,
    observe: &mut Observer<'_>,
) -> Result<PageMap, WriteError> {
    let memory = new.memory;
    let mut image = PackedImage::new(file);
    let mut map = PageMap::new(memory.layout().pages());
    let mut ours = vec![0; BULK];
    // Without a base they stay zero.
    let mut theirs = vec![0; BULK];
    for_each_piece(memory, candidates, &mut |first, count| {
        let bytes = bytes_of(first, count)?;
        let (ours, theirs) = (&mut ours[..bytes], &mut theirs[..bytes]);
        read(memory, first, ours)?;
        if let Some(base) = new.base {
            read(base, first, theirs)?;
        }
        let pairs = ours.chunks(PAGE_SIZE).zip(theirs.chunks(PAGE_SIZE));
        for (page, (our, their)) in (first..).zip(pairs) {
            if our == their {
                continue;
            }
            if is_zero(our) {
                map.push(page, RunKind::Zero)?;
                continue;
            }
            map.push(page, RunKind::Data)?;
            image.push(our).map_err(failed(files::MEMORY))?;
        }
        step(observe, Step::PieceDone)
    })?;
    image.finish().map_err(failed(files::MEMORY))?;
    Ok(map)
}

/// Calls `piece` with the first page and the number of pages of each piece of the candidates: 1 MiB at most, in one region.
fn for_each_piece(
    memory: &dyn PageSource,
    candidates: &mut dyn Iterator<Item = Range<u64>>,
    piece: &mut dyn FnMut(u64, u64) -> Result<(), WriteError>,
) -> Result<(), WriteError> {
    let layout = memory.layout();
    let (mut after, end) = (0, layout.pages());
    for range in candidates {
        if range.start < after || range.end < range.start || range.end > end {
            let found = range;
            return Err(WriteError::Candidates { found, after, end });
        }
        after = range.end;
        let mut first = range.start;
        while first < range.end {
            let count = layout.within_region(first, BULK_PAGES.min(range.end - first));
            piece(first, count)?;
            first += count;
        }
    }
    Ok(())
}

fn read(memory: &dyn PageSource, page: u64, buffer: &mut [u8]) -> Result<(), WriteError> {
    memory.read(page, buffer).map_err(|source| WriteError::Source { page, source })
}

fn bytes_of(page: u64, count: u64) -> Result<usize, WriteError> {
    usize::try_from(count * PAGE_BYTES)
        .map_err(|error| WriteError::Source { page, source: io::Error::other(error) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::memory;
    use std::ops::ControlFlow;

    fn files() -> NewFiles {
        let file = || tempfile::tempfile().unwrap();
        NewFiles { state: file(), memory: file(), runs: file() }
    }

    fn write(files: &NewFiles, base: Option<&dyn PageSource>) -> Result<(), WriteError> {
        let memory = memory(&[0, 1, 2, 0]);
        let new = NewContents { state_version: 1, state: b"registers", memory: &memory, base };
        write_contents(files, &new, &mut std::iter::once(0..4), &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn only_pages_that_are_not_known_without_it_are_written() {
        use RunKind::{Data, Zero};
        let base = memory(&[0, 1, 7, 8]);
        for (base, expected) in
            [(None, &[(1, 2, Data)][..]), (Some(&base as &dyn PageSource), &[(2, 1, Data), (3, 1, Zero)])]
        {
            let files = files();
            write(&files, base).unwrap();
            let bytes = files::read(&files.runs, 1 << 20).unwrap();
            let map = PageMap::parse(&bytes).unwrap();
            let runs: Vec<_> = map.runs().iter().map(|run| (run.first, run.count, run.kind)).collect();
            assert_eq!(runs, expected);
            assert_eq!(files::length(&files.memory).unwrap(), map.data_pages() * PAGE_BYTES);
            assert_eq!(map.frames(), None);
        }
    }

    #[test]
    fn files_that_are_not_empty_are_refused() {
        for name in [files::STATE, files::MEMORY, files::RUNS] {
            let files = files();
            let used = match name {
                files::STATE => &files.state,
                files::MEMORY => &files.memory,
                _ => &files.runs,
            };
            used.write_all_at(b"x", 0).unwrap();
            let error = write(&files, None).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot write {name}"));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let mut files = files();
        let temporary = tempfile::NamedTempFile::new().unwrap();
        files.memory = File::open(temporary.path()).unwrap();
        let error = write(&files, None).unwrap_err();
        assert!(matches!(error, WriteError::File { name: "memory.bin", .. }), "{error}");
    }
}
