//! `memory.map`: which pages of the memory a diff has in its `memory.bin`, and which have become zero.
//!
//! ```text
//!  0       16        20     24          32             40           48           80                112
//!  | magic | version | zero | run count | memory pages | data pages | runs blake3 | header checksum | runs …
//!    16      u32       u32    u64         u64            u64          32            32 = blake3 of bytes 0 to 79
//!
//!  run:  first page u64 | count u32 | kind u32 (1 data, 2 zero)
//! ```
//!
//! Numbers are little-endian. Runs ascend, do not touch a run of the same kind and are not empty, so that a set of pages has
//! one encoding. The pages of the data runs follow each other in `memory.bin`. A page in no run is the parent's.

use crate::digest::Digest;
use crate::layout::{MAX_MEMORY, PAGE_BYTES};
use crate::state::field;

const MAGIC: &[u8; 16] = b"forkd-page-map\n\0";
const VERSION: u32 = 1;
const RUN_LENGTH: usize = 16;
/// The most runs in a map: 1 GiB of them. Every second page of 512 GiB would have to change on its own.
const MAX_RUNS: usize = 1 << 26;

const VERSION_AT: usize = 16;
const RESERVED_AT: usize = 20;
const RUN_COUNT_AT: usize = 24;
const MEMORY_PAGES_AT: usize = 32;
const DATA_PAGES_AT: usize = 40;
const RUNS_DIGEST_AT: usize = 48;
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

/// The pages of a diff.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageMap {
    memory_pages: u64,
    data_pages: u64,
    runs: Vec<Run>,
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
    #[error("format version {found}, expected {VERSION}")]
    Version { found: u32 },
    #[error("the reserved field is {found}, expected 0")]
    Reserved { found: u32 },
    #[error("a memory of {found} pages, expected 1 to {}", MAX_MEMORY / PAGE_BYTES)]
    MemoryPages { found: u64 },
    #[error("{found} runs, expected at most {MAX_RUNS}")]
    TooManyRuns { found: u64 },
    #[error("{found} bytes of runs, expected {expected} (truncated, or something was added)")]
    Length { found: u64, expected: u64 },
    #[error("the runs are damaged: their blake3 digest is {found}, expected {expected}")]
    Runs { found: Digest, expected: Digest },
    #[error("run {index} is of kind {found}, expected 1 or 2")]
    Kind { index: usize, found: u32 },
    #[error("run {index} has {count} pages from {first} on, expected pages from {after} on and below {end}")]
    Range { index: usize, first: u64, count: u32, after: u64, end: u64 },
    #[error("run {index} continues the one before it, expected one run")]
    Split { index: usize },
    #[error("the runs have {found} pages of data, the header says {expected}")]
    DataPages { found: u64, expected: u64 },
}

impl PageMap {
    /// Bytes before the runs.
    pub const HEADER: usize = 112;
    /// The largest map in bytes.
    pub(crate) const MAX_LENGTH: u64 = (PageMap::HEADER + MAX_RUNS * RUN_LENGTH) as u64;

    /// A map of a memory in which no page differs.
    pub(crate) fn new(memory_pages: u64) -> PageMap {
        PageMap { memory_pages, data_pages: 0, runs: Vec::new() }
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

    pub fn encode(&self) -> Vec<u8> {
        let mut file = vec![0; PageMap::HEADER];
        file.reserve_exact(self.runs.len() * RUN_LENGTH);
        for run in &self.runs {
            let kind: u32 = match run.kind {
                RunKind::Data => 1,
                RunKind::Zero => 2,
            };
            file.extend_from_slice(&run.first.to_le_bytes());
            file.extend_from_slice(&run.count.to_le_bytes());
            file.extend_from_slice(&kind.to_le_bytes());
        }
        let (header, runs) = file.split_at_mut(PageMap::HEADER);
        header[..VERSION_AT].copy_from_slice(MAGIC);
        header[VERSION_AT..RESERVED_AT].copy_from_slice(&VERSION.to_le_bytes());
        header[RUN_COUNT_AT..MEMORY_PAGES_AT].copy_from_slice(&(self.runs.len() as u64).to_le_bytes());
        header[MEMORY_PAGES_AT..DATA_PAGES_AT].copy_from_slice(&self.memory_pages.to_le_bytes());
        header[DATA_PAGES_AT..RUNS_DIGEST_AT].copy_from_slice(&self.data_pages.to_le_bytes());
        header[RUNS_DIGEST_AT..CHECKSUM_AT].copy_from_slice(Digest::of(runs).as_bytes());
        let checksum = Digest::of(&header[..CHECKSUM_AT]);
        header[CHECKSUM_AT..].copy_from_slice(checksum.as_bytes());
        file
    }

    /// Checks a whole `memory.map`.
    pub fn parse(file: &[u8]) -> Result<PageMap, PageMapError> {
        let Some((header, runs)) = file.split_first_chunk::<{ PageMap::HEADER }>() else {
            return Err(PageMapError::NoHeader { found: file.len() });
        };
        let (run_count, memory_pages, data_pages) = parse_header(header)?;
        let expected = run_count * RUN_LENGTH as u64;
        if runs.len() as u64 != expected {
            return Err(PageMapError::Length { found: runs.len() as u64, expected });
        }
        let (found, expected) = (Digest::of(runs), Digest::from_bytes(field(header, RUNS_DIGEST_AT)));
        if found != expected {
            return Err(PageMapError::Runs { found, expected });
        }
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
        Ok(map)
    }
}

/// Checks the header; returns the run count, the memory's pages and the data pages.
fn parse_header(header: &[u8; PageMap::HEADER]) -> Result<(u64, u64, u64), PageMapError> {
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
    if version != VERSION {
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
    Ok((run_count, memory_pages, u64::from_le_bytes(field(header, DATA_PAGES_AT))))
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
        PageMap { memory_pages, data_pages, runs: runs.to_vec() }.encode()
    }

    fn sealed(mut file: Vec<u8>, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        change(&mut file);
        let digest = Digest::of(&file[PageMap::HEADER..]);
        file[RUNS_DIGEST_AT..CHECKSUM_AT].copy_from_slice(digest.as_bytes());
        let checksum = Digest::of(&file[..CHECKSUM_AT]);
        file[CHECKSUM_AT..PageMap::HEADER].copy_from_slice(checksum.as_bytes());
        file
    }

    fn good() -> Vec<u8> {
        forged(100, 7, &[run(0, 3, RunKind::Data), run(3, 2, RunKind::Zero), run(40, 4, RunKind::Data)])
    }

    #[test]
    fn every_flipped_bit_and_every_truncation_is_refused() {
        let good = good();
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
