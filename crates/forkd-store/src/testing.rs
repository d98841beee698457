//! What the tests share: memory in a vector, and a store in a temporary directory.

use std::fmt;
use std::io;
use std::ops::{ControlFlow, Deref, Range};
use std::path::Path;

use crate::digest::Digest;
use crate::layout::{Layout, PAGE_SIZE, Region};
use crate::manifest::{DiskLayer, Link, Manifest, SealedManifest};
use crate::page::{PageSink, PageSource};
use crate::snapshot_files::{SnapshotDirectory, SnapshotFiles};
use crate::store::Store;
use crate::tag::Tag;
use crate::write::{Base, NewSnapshot, Step, WriteError};

/// Guest memory that is a vector: source, sink and oracle.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    pub layout: Layout,
    pub bytes: Vec<u8>,
    /// For a sink: how often each page was delivered.
    pub delivered: Vec<u32>,
}

/// Memory of one region, each page filled with one value.
pub(crate) fn memory(values: &[u8]) -> Memory {
    let mut memory = Memory::of_regions(&[values.len() as u64]);
    for (page, &value) in (0..).zip(values) {
        memory.set(page, value);
    }
    memory
}

impl Memory {
    /// Zeroes, in regions of so many pages with holes between them.
    pub fn of_regions(pages: &[u64]) -> Memory {
        let region =
            |(index, &pages): (u64, &u64)| Region { address: index << 32, length: pages * PAGE_SIZE as u64 };
        let layout = Layout::new((0..).zip(pages).map(region).collect()).unwrap();
        let count = usize::try_from(layout.pages()).unwrap();
        Memory { layout, bytes: vec![0; count * PAGE_SIZE], delivered: vec![0; count] }
    }

    pub fn pages(&self) -> u64 {
        self.layout.pages()
    }

    /// Fills a page.
    pub fn set(&mut self, page: u64, value: u8) {
        let range = self.range(page, PAGE_SIZE);
        self.bytes[range].fill(value);
    }

    /// Where the bytes are; that pages of two regions never come together is checked here.
    fn range(&self, first: u64, length: usize) -> Range<usize> {
        assert!(length > 0 && length.is_multiple_of(PAGE_SIZE) && length <= 1 << 20);
        let last = first + (length / PAGE_SIZE) as u64 - 1;
        let region = |page| self.layout.locate(page).unwrap().0;
        assert_eq!(region(first), region(last), "pages {first} to {last}");
        let begin = usize::try_from(first).unwrap() * PAGE_SIZE;
        begin..begin + length
    }

    fn deliver(&mut self, first: u64, count: usize) {
        let first = usize::try_from(first).unwrap();
        for page in &mut self.delivered[first..first + count] {
            *page += 1;
        }
    }
}

impl fmt::Debug for Memory {
    /// The first byte of each page, so that a failed comparison can be read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first_bytes: Vec<u8> = self.bytes.chunks(PAGE_SIZE).map(|page| page[0]).collect();
        write!(f, "{:?} {first_bytes:?}", self.layout.regions())
    }
}

impl PageSource for Memory {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn read(&self, first: u64, buffer: &mut [u8]) -> io::Result<()> {
        let range = self.range(first, buffer.len());
        buffer.copy_from_slice(&self.bytes[range]);
        Ok(())
    }
}

impl PageSink for Memory {
    fn write(&mut self, first: u64, pages: &[u8]) -> io::Result<()> {
        let range = self.range(first, pages.len());
        self.bytes[range].copy_from_slice(pages);
        self.deliver(first, pages.len() / PAGE_SIZE);
        Ok(())
    }

    fn zero(&mut self, first: u64, count: u64) -> io::Result<()> {
        let region = |page| self.layout.locate(page).unwrap().0;
        assert_eq!(region(first), region(first + count - 1), "{count} pages from {first} on");
        for page in first..first + count {
            self.set(page, 0);
        }
        self.deliver(first, usize::try_from(count).unwrap());
        Ok(())
    }
}

pub(crate) fn tag(text: &str) -> Tag {
    text.parse().unwrap()
}

/// A store that is removed with the test.
#[derive(Debug)]
pub(crate) struct TestStore {
    directory: tempfile::TempDir,
    store: Store,
}

impl Deref for TestStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

impl TestStore {
    pub fn new() -> TestStore {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::new(directory.path());
        TestStore { directory, store }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn open(&self, name: &str) -> (SnapshotDirectory, SealedManifest) {
        SnapshotDirectory::open(&self.path().join(name)).unwrap().unwrap()
    }

    pub fn manifest(&self, name: &str) -> Manifest {
        self.open(name).1.manifest
    }

    pub fn link(&self, name: &str) -> Link {
        self.open(name).1.link()
    }

    /// The files of one snapshot, opened.
    pub fn files(&self, name: &str) -> SnapshotFiles {
        let (directory, sealed) = self.open(name);
        directory.files(&sealed.manifest, true).unwrap()
    }

    /// Writes a full snapshot.
    pub fn full(&self, name: &str, memory: &Memory) -> Link {
        write(self, name, memory, None, &mut |_| ControlFlow::Continue(())).unwrap().link()
    }

    /// Writes a diff against what the parent's chain has on disk, with every page a candidate.
    pub fn diff(&self, name: &str, parent: &Link, memory: &Memory) -> Link {
        let chain = crate::chain::Chain::load(self, &parent.tag).unwrap();
        let base = Base { parent: parent.clone(), memory: &chain };
        write(self, name, memory, Some(base), &mut |_| ControlFlow::Continue(())).unwrap().link()
    }
}

/// A snapshot with everything but its name, memory and base made up.
pub(crate) fn new_snapshot<'a>(name: &str, memory: &'a Memory, base: Option<Base<'a>>) -> NewSnapshot<'a> {
    NewSnapshot {
        tag: tag(name),
        created_unix_ms: 1_760_000_000_000,
        cpu_features: vec!["sse4_2".into(), "avx2".into(), "sse4_2".into()],
        disk_layers: vec![DiskLayer { id: tag("debian-12"), digest: Digest::of(b"disk"), size: 1 << 30 }],
        state_version: 3,
        state: b"registers",
        memory,
        base,
    }
}

pub(crate) fn write(
    store: &Store,
    name: &str,
    memory: &Memory,
    base: Option<Base<'_>>,
    observe: &mut dyn FnMut(Step) -> ControlFlow<()>,
) -> Result<SealedManifest, WriteError> {
    let mut all = std::iter::once(0..memory.pages());
    store.write(new_snapshot(name, memory, base), &mut all, observe)
}
