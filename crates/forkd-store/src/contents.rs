//! The contents of a new snapshot, written into files that someone else has made. This half runs in the process that holds
//! the frozen VM's memory; it sees descriptors and no paths.
//!
//! It runs on the caller's thread and holds three blocks of memory at most, so a zygote can do it behind the forks it serves.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::files;
use crate::image::{FullImage, PackedImage};
use crate::layout::{PAGE_BYTES, PAGE_SIZE};
use crate::manifest::FileEntry;
use crate::page::{BULK, BULK_PAGES, PageSource, is_zero};
use crate::page_map::{PageMap, RunKind};
use crate::state::{MAX_STATE, StateHeader};
use crate::write::{Observer, Step, WriteError, step};

/// The files of a new snapshot: they exist, are empty and can be written to.
#[derive(Debug)]
pub struct NewFiles {
    pub state: File,
    pub memory: File,
    /// For a diff.
    pub map: Option<File>,
}

/// What was written into them: goes into the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    pub state: FileEntry,
    pub memory: FileEntry,
    /// Of a diff.
    pub map: Option<FileEntry>,
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
) -> Result<Written, WriteError> {
    new.check()?;
    if files.map.is_some() != new.base.is_some() {
        return Err(WriteError::Kind { found: kind(&files.map), expected: kind(&new.base) });
    }
    let all = [
        (Some(&files.state), files::STATE),
        (Some(&files.memory), files::MEMORY),
        (files.map.as_ref(), files::MAP),
    ];
    for (file, name) in all {
        file.map_or(Ok(()), check_empty).map_err(failed(name))?;
    }

    let header = StateHeader::new(new.state_version, new.state).encode();
    let state = write_file(&files.state, &[&header, new.state]).map_err(failed(files::STATE))?;
    step(observe, Step::StateWritten)?;
    let (Some(map_file), Some(base)) = (&files.map, new.base) else {
        let memory = write_full(new.memory, candidates, &files.memory, observe)?;
        return Ok(Written { state, memory, map: None });
    };
    let (memory, map) = write_diff(new.memory, base, candidates, &files.memory, observe)?;
    let map = write_file(map_file, &[&map.encode()]).map_err(failed(files::MAP))?;
    step(observe, Step::MapWritten)?;
    Ok(Written { state, memory, map: Some(map) })
}

/// What a snapshot with or without something that only a diff has is called.
pub(crate) fn kind<T>(of_diff: &Option<T>) -> &'static str {
    if of_diff.is_some() { "diff" } else { "full" }
}

fn failed(name: &'static str) -> impl FnOnce(io::Error) -> WriteError {
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
pub(crate) fn write_file(file: &File, parts: &[&[u8]]) -> io::Result<FileEntry> {
    let mut hasher = blake3::Hasher::new();
    let mut size = 0;
    for part in parts {
        file.write_all_at(part, size)?;
        hasher.update(part);
        size += part.len() as u64;
    }
    file.sync_all()?;
    Ok(FileEntry { size, digest: Digest::from_bytes(*hasher.finalize().as_bytes()) })
}

fn write_full(
    memory: &dyn PageSource,
    candidates: &mut dyn Iterator<Item = Range<u64>>,
    file: &File,
    observe: &mut Observer<'_>,
) -> Result<FileEntry, WriteError> {
    let failed = || failed(files::MEMORY);
    let mut image = FullImage::new(file, memory.layout().pages()).map_err(failed())?;
    for_each_piece(memory, candidates, &mut |first, count| {
        let mut first = first;
        let end = first + count;
        while first < end {
            let count = FullImage::within_block(first, end - first);
            read(memory, first, image.pages(first, count).map_err(failed())?)?;
            first += count;
        }
        step(observe, Step::PieceDone)
    })?;
    let digest = image.finish().map_err(failed())?;
    file.sync_all().map_err(failed())?;
    step(observe, Step::MemoryWritten)?;
    Ok(FileEntry { size: memory.layout().size(), digest })
}

fn write_diff(
    memory: &dyn PageSource,
    base: &dyn PageSource,
    candidates: &mut dyn Iterator<Item = Range<u64>>,
    file: &File,
    observe: &mut Observer<'_>,
) -> Result<(FileEntry, PageMap), WriteError> {
    let failed = || failed(files::MEMORY);
    let mut image = PackedImage::new(file);
    let mut map = PageMap::new(memory.layout().pages());
    let (mut ours, mut theirs) = (vec![0; BULK], vec![0; BULK]);
    for_each_piece(memory, candidates, &mut |first, count| {
        let bytes = bytes_of(first, count)?;
        let (ours, theirs) = (&mut ours[..bytes], &mut theirs[..bytes]);
        read(memory, first, ours)?;
        read(base, first, theirs)?;
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
            image.push(our).map_err(failed())?;
        }
        step(observe, Step::PieceDone)
    })?;
    let (size, digest) = image.finish().map_err(failed())?;
    file.sync_all().map_err(failed())?;
    step(observe, Step::MemoryWritten)?;
    Ok((FileEntry { size, digest }, map))
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

    fn files(diff: bool) -> NewFiles {
        let file = || tempfile::tempfile().unwrap();
        NewFiles { state: file(), memory: file(), map: diff.then(file) }
    }

    fn write(files: &NewFiles, base: Option<&dyn PageSource>) -> Result<Written, WriteError> {
        let memory = memory(&[0, 1, 2]);
        let new = NewContents { state_version: 1, state: b"registers", memory: &memory, base };
        write_contents(files, &new, &mut std::iter::once(0..3), &mut |_| ControlFlow::Continue(()))
    }

    #[test]
    fn what_was_written_is_what_the_files_have() {
        let base = memory(&[0, 1, 7]);
        for diff in [false, true] {
            let files = files(diff);
            let written = write(&files, diff.then_some(&base as &dyn PageSource)).unwrap();
            assert_eq!(files::length(&files.state).unwrap(), written.state.size);
            let memory = (files::length(&files.memory).unwrap(), written.memory.digest);
            assert_eq!(memory, Digest::of_image(&files.memory).unwrap());
            assert_eq!(memory.0, if diff { PAGE_BYTES } else { 3 * PAGE_BYTES });
            assert_eq!(written.map.is_some(), diff);
            // As it travels to whoever writes the manifest.
            let text = serde_json::to_string(&written).unwrap();
            assert!(text.contains(&format!("\"{}\"", written.state.digest)), "{text}");
            assert_eq!(serde_json::from_str::<Written>(&text).unwrap(), written);
        }
    }

    #[test]
    fn files_that_are_not_as_expected_are_refused() {
        let base = memory(&[0, 1, 7]);
        let error = write(&files(true), None).unwrap_err();
        assert_eq!(error.to_string(), "files for a diff snapshot, but what is written is a full one");
        assert!(matches!(write(&files(false), Some(&base)), Err(WriteError::Kind { .. })));
        for name in [files::STATE, files::MEMORY, files::MAP] {
            let files = files(true);
            let used = match name {
                files::STATE => &files.state,
                files::MEMORY => &files.memory,
                _ => files.map.as_ref().unwrap(),
            };
            used.write_all_at(b"x", 0).unwrap();
            let error = write(&files, Some(&base)).unwrap_err();
            assert_eq!(error.to_string(), format!("cannot write {name}"));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let mut files = files(false);
        let temporary = tempfile::NamedTempFile::new().unwrap();
        files.memory = File::open(temporary.path()).unwrap();
        let error = write(&files, None).unwrap_err();
        assert!(matches!(error, WriteError::File { name: "memory.bin", .. }), "{error}");
    }
}
