//! What the tests share: memory in a vector, and a store in a temporary directory.

use std::fmt;
use std::fs;
use std::io;
use std::ops::{ControlFlow, Deref, Range};
use std::path::Path;
use std::sync::Mutex;

use crate::digest::Digest;
use crate::draft::DiskLayer;
use crate::layout::{Layout, PAGE_SIZE, Region};
use crate::manifest::{Cpu, LayerEntry, Link, Manifest};
use crate::page::{PageSink, PageSource};
use crate::snapshot_files::{SnapshotDirectory, SnapshotFiles};
use crate::store::{Store, Stored};
use crate::tag::Tag;
use crate::write::{Base, NewSnapshot, Step, WriteError};

/// Guest memory that is a vector: source, sink and oracle.
pub(crate) struct Memory {
    pub layout: Layout,
    pub bytes: Vec<u8>,
    /// For a sink: what came, until it is read.
    received: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    /// How often each page was delivered.
    times: Vec<u32>,
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
        Memory { layout, bytes: vec![0; count * PAGE_SIZE], received: Mutex::default() }
    }

    /// Looks at what was delivered, each page once.
    pub fn received(self) -> Memory {
        let Received { bytes, times } = self.received.into_inner().unwrap();
        assert!(
            times.len() as u64 == self.layout.pages() && times.iter().all(|&times| times == 1),
            "{times:?}"
        );
        Memory { bytes, received: Mutex::default(), ..self }
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
        assert!(length > 0 && length.is_multiple_of(PAGE_SIZE) && length <= 2 << 20);
        let last = first + (length / PAGE_SIZE) as u64 - 1;
        let region = |page| self.layout.locate(page).unwrap().0;
        assert_eq!(region(first), region(last), "pages {first} to {last}");
        let begin = usize::try_from(first).unwrap() * PAGE_SIZE;
        begin..begin + length
    }

    fn deliver(&self, range: Range<usize>, from: impl FnOnce(&mut [u8])) {
        let mut received = self.received.lock().unwrap();
        received.bytes.resize(self.bytes.len(), 0xee);
        received.times.resize(self.bytes.len() / PAGE_SIZE, 0);
        from(&mut received.bytes[range.clone()]);
        for page in &mut received.times[range.start / PAGE_SIZE..range.end / PAGE_SIZE] {
            *page += 1;
        }
    }
}

impl Clone for Memory {
    fn clone(&self) -> Memory {
        Memory { layout: self.layout.clone(), bytes: self.bytes.clone(), received: Mutex::default() }
    }
}

impl PartialEq for Memory {
    fn eq(&self, other: &Memory) -> bool {
        self.layout == other.layout && self.bytes == other.bytes
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
    fn write(&self, first: u64, pages: &[u8]) -> io::Result<()> {
        let range = self.range(first, pages.len());
        self.deliver(range, |place| place.copy_from_slice(pages));
        Ok(())
    }

    fn zero(&self, first: u64, count: u64) -> io::Result<()> {
        let region = |page| self.layout.locate(page).unwrap().0;
        assert_eq!(region(first), region(first + count - 1), "{count} pages from {first} on");
        let [begin, end] = [first, first + count].map(|page| usize::try_from(page).unwrap() * PAGE_SIZE);
        self.deliver(begin..end, |place| place.fill(0));
        Ok(())
    }
}

/// A CPU with some features.
pub(crate) fn cpu(features: &[&str]) -> Cpu {
    let features = features.iter().map(ToString::to_string).collect();
    Cpu { vendor: Some("AuthenticAMD".into()), features, tsc_khz: Some(2_400_000) }
}

/// A manifest with a piece of its text replaced, sealed as an attacker would.
pub(crate) fn reseal(file: &[u8], old: &str, new: &str) -> Vec<u8> {
    let text = std::str::from_utf8(file).unwrap();
    let body = text.rsplit_once(",\n  \"digest\": \"").unwrap().0;
    assert!(body.contains(old), "{old} is not in {body}");
    seal_text(body.replacen(old, new, 1).as_bytes())
}

/// Any bytes, sealed as a manifest is.
pub(crate) fn seal_text(body: &[u8]) -> Vec<u8> {
    let seal = format!(",\n  \"digest\": \"{}\"\n}}\n", Digest::of(body));
    [body, seal.as_bytes()].concat()
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

    /// One with the snapshots of version 1 that are kept for that: `base`, and `head`, a diff of it. Returns their memory, too.
    pub fn of_version_1() -> (TestStore, [Memory; 2]) {
        let store = TestStore::new();
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("records/snapshots-1");
        for name in ["base", "head"] {
            fs::create_dir(store.path().join(name)).unwrap();
            for file in fs::read_dir(kept.join(name)).unwrap() {
                let file = file.unwrap();
                fs::copy(file.path(), store.path().join(name).join(file.file_name())).unwrap();
            }
        }
        let content = [[0, 1, 2, 0, 3], [0, 7, 0, 8, 3]].map(|values| {
            let mut memory = Memory::of_regions(&[3, 2]);
            (0..).zip(values).for_each(|(page, value)| memory.set(page, value));
            memory
        });
        (store, content)
    }

    fn open(&self, name: &str) -> (SnapshotDirectory, Stored) {
        SnapshotDirectory::open(&self.path().join(name)).unwrap().unwrap()
    }

    pub fn stored(&self, name: &str) -> Stored {
        self.open(name).1
    }

    pub fn manifest(&self, name: &str) -> Manifest {
        self.stored(name).sealed.manifest
    }

    pub fn link(&self, name: &str) -> Link {
        self.open(name).1.link()
    }

    /// The files of one snapshot, opened.
    pub fn files(&self, name: &str) -> SnapshotFiles {
        let (directory, stored) = self.open(name);
        directory.files(stored.manifest(), true).unwrap()
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
        cpu: cpu(&["sse4_2", "avx2", "sse4_2"]),
        disk_layers: vec![DiskLayer {
            id: tag("debian-12"),
            entry: LayerEntry { digest: Digest::of(b"disk"), size: 1 << 30 },
        }],
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
) -> Result<Stored, WriteError> {
    let mut all = std::iter::once(0..memory.pages());
    store.write(new_snapshot(name, memory, base), &mut all, observe)
}
