//! `memory.map`: which pages of the memory are in `memory.bin`, which have become zero, and the digests of the frames of `memory.bin`.
//!
//! ```text
//!  0       16        20     24          32             40           48           80                112
//!  | magic | version | zero | run count | memory pages | data pages | body blake3 | header checksum | runs … | frames …
//!    16      u32       u32    u64         u64            u64          32            32 = blake3 of bytes 0 to 79
//!
//!  run:    first page u64 | count u32 | kind u32 (1 data, 2 zero)
//!  frame:  blake3 of 2 MiB of memory.bin, of the last one maybe less; as many as the data pages fill
//! ```
//!
//! Numbers are little-endian. Runs ascend, do not touch a run of the same kind and are not empty, so that a set of pages has
//! one encoding. The pages of the data runs follow each other in `memory.bin`. A page in no run is the parent's; without a parent it
//! is zero.
//!
//! Version 1 has no frames. It is also what the process that writes a snapshot leaves: the frames are added by the owner of the store,
//! who hashes them (`seal.rs`).

use crate::digest::Digest;
use crate::frame;
use crate::layout::{MAX_MEMORY, PAGE_BYTES};
use crate::state::field;

const MAGIC: &[u8; 16] = b"forkd-page-map\n\0";
const WITHOUT_FRAMES: u32 = 1;
const WITH_FRAMES: u32 = 2;
const RUN_LENGTH: usize = 16;
/// The most runs in a map: 1 GiB of them. Every second page of 512 GiB would have to change on its own.
const MAX_RUNS: usize = 1 << 26;

const VERSION_AT: usize = 16;
const RESERVED_AT: usize = 20;
const RUN_COUNT_AT: usize = 24;
const MEMORY_PAGES_AT: usize = 32;
const DATA_PAGES_AT: usize = 40;
const BODY_DIGEST_AT: usize = 48;
const CHECKSUM_AT: usize = 80;

/// What a diff says about a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunKind {
    /// It is in `memory.bin`.
    Data,
    /// It is zero here and was not in the parent.
    Zero,
}

/// Consecutive pages of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    pub first: u64,
    pub count: u32,
    pub kind: RunKind,
}

impl Run {
    /// The page after the last.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// The pages of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageMap {
    memory_pages: u64,
    data_pages: u64,
    runs: Vec<Run>,
    frames: Option<Vec<Digest>>,
}

/// The bytes are not a page map that can be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageMapError {
    #[error("truncated: {found} bytes, expected at least the header's {}", PageMap::HEADER)]
    NoHeader { found: usize },
    #[error("not a page map: it begins with {found:02x?}, expected {MAGIC:02x?}")]
    Magic { found: [u8; 16] },
    #[error("the header is damaged: its checksum is {found}, expected {expected}")]
    Checksum { found: Digest, expected: Digest },
    #[error("format version {found}, expected {WITHOUT_FRAMES} or {WITH_FRAMES}")]
    Version { found: u32 },
    #[error("the reserved field is {found}, expected 0")]
    Reserved { found: u32 },
    #[error("a memory of {found} pages, expected 1 to {}", MAX_MEMORY / PAGE_BYTES)]
    MemoryPages { found: u64 },
    #[error("{found} runs, expected at most {MAX_RUNS}")]
    TooManyRuns { found: u64 },
    #[error("{found} bytes behind the header, expected {expected} (truncated, or something was added)")]
    Length { found: u64, expected: u64 },
    #[error("what is behind the header is damaged: its blake3 digest is {found}, expected {expected}")]
    Body { found: Digest, expected: Digest },
    #[error("run {index} is of kind {found}, expected 1 or 2")]
    Kind { index: usize, found: u32 },
    #[error("run {index} has {count} pages from {first} on, expected pages from {after} on and below {end}")]
    Range { index: usize, first: u64, count: u32, after: u64, end: u64 },
    #[error("run {index} continues the one before it, expected one run")]
    Split { index: usize },
    #[error("the runs have {found} pages of data, the header says {expected}")]
    DataPages { found: u64, expected: u64 },
    #[error("{found} frames, expected {expected}")]
    Frames { found: u64, expected: u64 },
}

impl PageMap {
    /// Bytes before the runs.
    pub const HEADER: usize = 112;

    /// The largest map of a memory in bytes.
    pub(crate) fn max_length(memory_pages: u64) -> u64 {
        let runs = memory_pages.min(MAX_RUNS as u64) * RUN_LENGTH as u64;
        PageMap::HEADER as u64 + runs + frame_count(memory_pages) * Digest::LENGTH as u64
    }

    /// A map of a memory in which no page differs.
    pub(crate) fn new(memory_pages: u64) -> PageMap {
        PageMap { memory_pages, data_pages: 0, runs: Vec::new(), frames: None }
    }

    /// The same with the digests of the frames of `memory.bin`.
    pub(crate) fn with_frames(self, frames: Vec<Digest>) -> Result<PageMap, PageMapError> {
        let (found, expected) = (frames.len() as u64, frame_count(self.data_pages));
        if found != expected {
            return Err(PageMapError::Frames { found, expected });
        }
        Ok(PageMap { frames: Some(frames), ..self })
    }

    /// Adds a page behind all others that were added.
    pub(crate) fn push(&mut self, page: u64, kind: RunKind) -> Result<(), PageMapError> {
        if let Some(last) = self.runs.last_mut()
            && last.kind == kind
            && last.end() == page
            && page < self.memory_pages
            && last.count < u32::MAX
        {
            last.count += 1;
            self.data_pages += u64::from(kind == RunKind::Data);
            return Ok(());
        }
        self.append(Run { first: page, count: 1, kind })
    }

    /// The one place that decides whether a run may follow the others.
    fn append(&mut self, run: Run) -> Result<(), PageMapError> {
        let index = self.runs.len();
        if index >= MAX_RUNS {
            return Err(PageMapError::TooManyRuns { found: index as u64 + 1 });
        }
        let after = self.runs.last().map_or(0, Run::end);
        let fits = run.count > 0
            && run.first >= after
            && run.first < self.memory_pages
            && u64::from(run.count) <= self.memory_pages - run.first;
        if !fits {
            return Err(PageMapError::Range {
                index,
                first: run.first,
                count: run.count,
                after,
                end: self.memory_pages,
            });
        }
        if self.runs.last().is_some_and(|last| last.kind == run.kind && last.end() == run.first) {
            return Err(PageMapError::Split { index });
        }
        if run.kind == RunKind::Data {
            self.data_pages += u64::from(run.count);
        }
        self.runs.push(run);
        Ok(())
    }

    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Pages of the whole memory.
    pub fn memory_pages(&self) -> u64 {
        self.memory_pages
    }

    /// Pages in `memory.bin`.
    pub fn data_pages(&self) -> u64 {
        self.data_pages
    }

    /// The digests of the frames of `memory.bin`. Version 1 has none.
    pub fn frames(&self) -> Option<&[Digest]> {
        self.frames.as_deref()
    }

    pub fn encode(&self) -> Vec<u8> {
        let frames = self.frames.as_deref().unwrap_or_default();
        let version = if self.frames.is_some() { WITH_FRAMES } else { WITHOUT_FRAMES };
        let mut file = vec![0; PageMap::HEADER];
        file.reserve_exact(self.runs.len() * RUN_LENGTH + frames.len() * Digest::LENGTH);
        for run in &self.runs {
            let kind: u32 = match run.kind {
                RunKind::Data => 1,
                RunKind::Zero => 2,
            };
            file.extend_from_slice(&run.first.to_le_bytes());
            file.extend_from_slice(&run.count.to_le_bytes());
            file.extend_from_slice(&kind.to_le_bytes());
        }
        frames.iter().for_each(|frame| file.extend_from_slice(frame.as_bytes()));
        let (header, body) = file.split_at_mut(PageMap::HEADER);
        header[..VERSION_AT].copy_from_slice(MAGIC);
        header[VERSION_AT..RESERVED_AT].copy_from_slice(&version.to_le_bytes());
        header[RUN_COUNT_AT..MEMORY_PAGES_AT].copy_from_slice(&(self.runs.len() as u64).to_le_bytes());
        header[MEMORY_PAGES_AT..DATA_PAGES_AT].copy_from_slice(&self.memory_pages.to_le_bytes());
        header[DATA_PAGES_AT..BODY_DIGEST_AT].copy_from_slice(&self.data_pages.to_le_bytes());
        header[BODY_DIGEST_AT..CHECKSUM_AT].copy_from_slice(Digest::of(body).as_bytes());
        let checksum = Digest::of(&header[..CHECKSUM_AT]);
        header[CHECKSUM_AT..].copy_from_slice(checksum.as_bytes());
        file
    }

    /// Checks a whole `memory.map`.
    pub fn parse(file: &[u8]) -> Result<PageMap, PageMapError> {
        let Some((header, body)) = file.split_first_chunk::<{ PageMap::HEADER }>() else {
            return Err(PageMapError::NoHeader { found: file.len() });
        };
        let Header { version, run_count, memory_pages, data_pages } = parse_header(header)?;
        // No sum overflows: the runs are bounded, and frames are a small part of any number of bytes.
        let run_bytes = run_count * RUN_LENGTH as u64;
        let frame_bytes = match version {
            WITH_FRAMES => frame_count(data_pages) * Digest::LENGTH as u64,
            _ => 0,
        };
        let (found, expected) = (body.len() as u64, run_bytes + frame_bytes);
        if found != expected {
            return Err(PageMapError::Length { found, expected });
        }
        let (found, expected) = (Digest::of(body), Digest::from_bytes(field(header, BODY_DIGEST_AT)));
        if found != expected {
            return Err(PageMapError::Body { found, expected });
        }
        let (runs, frames) = body.split_at(usize::try_from(run_bytes).unwrap_or(usize::MAX));
        let mut map = PageMap::new(memory_pages);
        map.runs.reserve_exact(runs.len() / RUN_LENGTH);
        for run in runs.as_chunks::<RUN_LENGTH>().0 {
            let kind = match u32::from_le_bytes(field(run, 12)) {
                1 => RunKind::Data,
                2 => RunKind::Zero,
                found => {
                    let index = map.runs.len();
                    return Err(PageMapError::Kind { index, found });
                }
            };
            map.append(Run {
                first: u64::from_le_bytes(field(run, 0)),
                count: u32::from_le_bytes(field(run, 8)),
                kind,
            })?;
        }
        if map.data_pages != data_pages {
            return Err(PageMapError::DataPages { found: map.data_pages, expected: data_pages });
        }
        if version == WITH_FRAMES {
            let frames = frames.as_chunks::<{ Digest::LENGTH }>().0;
            map.frames = Some(frames.iter().map(|bytes| Digest::from_bytes(*bytes)).collect());
        }
        Ok(map)
    }
}

/// How many frames so many pages fill.
fn frame_count(pages: u64) -> u64 {
    frame::count(pages.saturating_mul(PAGE_BYTES))
}

/// What is in the header besides digests.
struct Header {
    version: u32,
    run_count: u64,
    memory_pages: u64,
    data_pages: u64,
}

fn parse_header(header: &[u8; PageMap::HEADER]) -> Result<Header, PageMapError> {
    let magic: [u8; 16] = field(header, 0);
    if magic != *MAGIC {
        return Err(PageMapError::Magic { found: magic });
    }
    let expected = Digest::from_bytes(field(header, CHECKSUM_AT));
    let found = Digest::of(&header[..CHECKSUM_AT]);
    if found != expected {
        return Err(PageMapError::Checksum { found, expected });
    }
    let version = u32::from_le_bytes(field(header, VERSION_AT));
    if ![WITHOUT_FRAMES, WITH_FRAMES].contains(&version) {
        return Err(PageMapError::Version { found: version });
    }
    let reserved = u32::from_le_bytes(field(header, RESERVED_AT));
    if reserved != 0 {
        return Err(PageMapError::Reserved { found: reserved });
    }
    let run_count = u64::from_le_bytes(field(header, RUN_COUNT_AT));
    if run_count > MAX_RUNS as u64 {
        return Err(PageMapError::TooManyRuns { found: run_count });
    }
    let memory_pages = u64::from_le_bytes(field(header, MEMORY_PAGES_AT));
    if !(1..=MAX_MEMORY / PAGE_BYTES).contains(&memory_pages) {
        return Err(PageMapError::MemoryPages { found: memory_pages });
    }
    let data_pages = u64::from_le_bytes(field(header, DATA_PAGES_AT));
    Ok(Header { version, run_count, memory_pages, data_pages })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(first: u64, count: u32, kind: RunKind) -> Run {
        Run { first, count, kind }
    }

    /// A map as a hostile writer would make it: any runs, good checksums.
    fn forged(memory_pages: u64, data_pages: u64, runs: &[Run]) -> Vec<u8> {
        PageMap { memory_pages, data_pages, runs: runs.to_vec(), frames: None }.encode()
    }

    fn sealed(mut file: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        change(&mut file);
        let digest = Digest::of(&file[PageMap::HEADER..]);
        file[BODY_DIGEST_AT..CHECKSUM_AT].copy_from_slice(digest.as_bytes());
        let checksum = Digest::of(&file[..CHECKSUM_AT]);
        file[CHECKSUM_AT..PageMap::HEADER].copy_from_slice(checksum.as_bytes());
        file
    }

    fn good() -> Vec<u8> {
        forged(100, 7, &[run(0, 3, RunKind::Data), run(3, 2, RunKind::Zero), run(40, 4, RunKind::Data)])
    }

    /// The same with a frame.
    fn framed() -> Vec<u8> {
        let map = PageMap::parse(&good()).unwrap();
        map.with_frames(vec![Digest::of(b"a frame")]).unwrap().encode()
    }

    #[test]
    fn frames_are_kept_and_as_many_as_the_data_fills() {
        let map = PageMap::parse(&framed()).unwrap();
        assert_eq!(map.frames(), Some(&[Digest::of(b"a frame")][..]));
        assert_eq!(PageMap::parse(&good()).unwrap().frames(), None);
        let error = map.with_frames(vec![]).unwrap_err();
        assert_eq!(error, PageMapError::Frames { found: 0, expected: 1 });
        let large = PageMap::parse(&forged(10_000, 513, &[run(0, 513, RunKind::Data)])).unwrap();
        assert!(large.clone().with_frames(vec![Digest::of(b""); 1]).is_err());
        assert!(large.with_frames(vec![Digest::of(b""); 2]).is_ok());
        // Runs without frames, called a map with frames.
        let error = PageMap::parse(&sealed(good(), |file| file[VERSION_AT] = 2)).unwrap_err();
        assert!(matches!(error, PageMapError::Length { .. }), "{error}");
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        [good(), framed()].into_iter().for_each(refused_when_damaged);
    }

    fn refused_when_damaged(good: Vec<u8>) {
        assert!(PageMap::parse(&good).is_ok());
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(PageMap::parse(&bad).is_err(), "bit {bit}");
        }
        for length in 0..good.len() {
            assert!(PageMap::parse(&good[..length]).is_err(), "{length} bytes");
        }
        let longer = [&good[..], &[0; 16]].concat();
        assert!(matches!(PageMap::parse(&longer), Err(PageMapError::Length { .. })));
    }

    #[test]
    fn runs_that_make_no_sense_are_refused_by_name() {
        use RunKind::{Data, Zero};
        let refused = |pages, runs: &[Run]| {
            let data = runs.iter().filter(|run| run.kind == Data);
            let data = data.map(|run| u64::from(run.count)).sum();
            PageMap::parse(&forged(pages, data, runs)).unwrap_err()
        };
        let backwards = refused(100, &[run(8, 2, Data), run(7, 1, Zero)]);
        assert_eq!(
            backwards.to_string(),
            "run 1 has 1 pages from 7 on, expected pages from 10 on and below 100"
        );
        for (pages, runs) in [
            (100, [run(0, 0, Data)]),
            (100, [run(99, 2, Data)]),
            (100, [run(100, 1, Zero)]),
            (100, [run(u64::MAX, u32::MAX, Data)]),
        ] {
            assert!(matches!(refused(pages, &runs), PageMapError::Range { .. }), "{runs:?}");
        }
        let split = refused(100, &[run(5, 2, Zero), run(7, 2, Zero)]);
        assert_eq!(split, PageMapError::Split { index: 1 });
        assert!(matches!(refused(0, &[]), PageMapError::MemoryPages { found: 0 }));
        assert!(matches!(refused(u64::MAX, &[]), PageMapError::MemoryPages { .. }));

        let refused = |change: fn(&mut [u8])| PageMap::parse(&sealed(good(), change)).unwrap_err();
        assert_eq!(refused(|file| file[VERSION_AT] = 9), PageMapError::Version { found: 9 });
        assert_eq!(refused(|file| file[RESERVED_AT] = 1), PageMapError::Reserved { found: 1 });
        assert!(matches!(refused(|file| file[RUN_COUNT_AT] = 2), PageMapError::Length { .. }));
        assert!(matches!(refused(|file| file[RUN_COUNT_AT + 7] = 1), PageMapError::TooManyRuns { .. }));
        assert!(matches!(
            refused(|file| file[DATA_PAGES_AT] = 8),
            PageMapError::DataPages { found: 7, expected: 8 }
        ));
        assert!(matches!(
            refused(|file| file[PageMap::HEADER + 12] = 3),
            PageMapError::Kind { index: 0, found: 3 }
        ));
    }

    /// The fuzzer begins with a map of both kinds of runs. `FORKD_WRITE_SEEDS=1` writes it anew.
    #[test]
    fn the_fuzzer_s_seed_is_a_good_map() {
        let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/page_map");
        let seed = seeds.join("three-runs");
        if std::env::var_os("FORKD_WRITE_SEEDS").is_some() {
            std::fs::create_dir_all(&seeds).unwrap();
            std::fs::write(&seed, good()).unwrap();
        }
        let map = PageMap::parse(&std::fs::read(&seed).unwrap()).unwrap();
        assert_eq!((map.encode(), map.runs().len()), (good(), 3));
    }

    proptest! {
        #[test]
        fn a_set_of_pages_survives_and_has_one_encoding(
            pages in proptest::collection::btree_map(0u64..200, any::<bool>(), 0..200),
        ) {
            let mut map = PageMap::new(200);
            for (&page, &data) in &pages {
                map.push(page, if data { RunKind::Data } else { RunKind::Zero }).unwrap();
            }
            let parsed = PageMap::parse(&map.encode()).unwrap();
            prop_assert_eq!(&parsed, &map);
            prop_assert_eq!(parsed.data_pages(), pages.values().filter(|data| **data).count() as u64);
            let listed: Vec<_> = parsed.runs().iter()
                .flat_map(|run| (run.first..run.end()).map(|page| (page, run.kind == RunKind::Data)))
                .collect();
            prop_assert_eq!(listed, pages.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_panic(runs in proptest::collection::vec(any::<u8>(), 0..200), pages: u64, data: u64) {
            let mut file = forged(pages, data, &[]);
            file.extend_from_slice(&runs[..runs.len() / RUN_LENGTH * RUN_LENGTH]);
            let file = sealed(file, |file| {
                file[RUN_COUNT_AT] = u8::try_from(runs.len() / RUN_LENGTH).unwrap();
            });
            let _ = PageMap::parse(&file);
            let _ = PageMap::parse(&runs);
        }
    }
}
