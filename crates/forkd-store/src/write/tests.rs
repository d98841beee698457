//! Tests of writing: what is stored, what comes back, and what a kill leaves.

use super::*;
use crate::chain::Chain;
use crate::digest::Digest;
use crate::layout::{PAGE_BYTES, PAGE_SIZE};
use crate::manifest::LayerEntry;
use crate::page::is_zero;
use crate::page_map::RunKind;
use crate::testing::{Memory, TestStore, memory, new_snapshot, tag, write};
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

fn go_on(_: Step) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Loads a chain into memory that holds something else, and checks that each page came once.
fn load(store: &Store, name: &str) -> Memory {
    let chain = Chain::load(store, &tag(name)).unwrap();
    let regions: Vec<_> = chain.layout().regions().iter().map(|region| region.length / PAGE_BYTES).collect();
    let memory = Memory::of_regions(&regions);
    chain.assemble(&memory).unwrap();
    memory.received()
}

fn base(parent: &Link, memory: &'static Memory) -> Option<Base<'static>> {
    let parent = parent.clone();
    Some(Base { parent, memory })
}

/// Memory that lives as long as the tests do.
fn forever(memory: Memory) -> &'static Memory {
    Box::leak(Box::new(memory))
}

#[test]
fn a_full_snapshot_has_its_files_and_no_others_and_is_private() {
    let store = TestStore::new();
    store.full("base", &memory(&[0, 1, 0, 2]));
    assert_eq!(names(store.path()), ["base"]);
    let directory = store.path().join("base");
    assert_eq!(names(&directory), ["local.json", "manifest.json", "memory.bin", "memory.map", "state.bin"]);
    for name in names(&directory) {
        assert_eq!(fs::metadata(directory.join(name)).unwrap().mode() & 0o077, 0);
    }
    let memory = fs::metadata(directory.join("memory.bin")).unwrap();
    assert_eq!(memory.len(), 2 * PAGE_BYTES, "zero pages take no space");

    let chain = Chain::load(&store, &tag("base")).unwrap();
    assert_eq!(chain.state().version(), 3);
    assert_eq!(chain.state().payload(), b"registers");
    assert_eq!(chain.manifest().cpu.features, ["avx2", "sse4_2"]);
    let stored = store.stored("base");
    let layer = LayerEntry { digest: Digest::of(b"disk"), size: 1 << 30 };
    assert!(stored.disk_layers().eq([(&tag("debian-12"), layer)]));
}

#[test]
fn a_diff_stores_what_differs_and_nothing_else() {
    let store = TestStore::new();
    let parent = store.full("base", &memory(&[1, 2, 3, 0, 5, 6]));
    //                                      same, changed, zeroed, set, same, zeroed
    store.diff("diff", &parent, &memory(&[1, 9, 0, 4, 5, 0]));
    let directory = store.path().join("diff");
    assert_eq!(names(&directory), ["local.json", "manifest.json", "memory.bin", "memory.map", "state.bin"]);
    assert_eq!(fs::metadata(directory.join("memory.bin")).unwrap().len(), 2 * PAGE_BYTES);
    let chain = Chain::load(&store, &tag("diff")).unwrap();
    let runs: Vec<_> =
        chain.head().map().unwrap().runs().iter().map(|run| (run.first, run.count, run.kind)).collect();
    use RunKind::{Data, Zero};
    assert_eq!(runs, [(1, 1, Data), (2, 1, Zero), (3, 1, Data), (5, 1, Zero)]);

    let same = store.link("diff");
    store.diff("same", &same, &memory(&[1, 9, 0, 4, 5, 0]));
    assert_eq!(fs::metadata(store.path().join("same/memory.bin")).unwrap().len(), 0);
    assert_eq!(load(&store, "same"), memory(&[1, 9, 0, 4, 5, 0]));
}

#[test]
fn large_memory_goes_through_in_blocks() {
    let store = TestStore::new();
    let mut content = Memory::of_regions(&[300, 3, 700]);
    for page in (0..1003).filter(|page| page % 3 != 0 && !(400..800).contains(page)) {
        content.set(page, u8::try_from(page % 255 + 1).unwrap());
    }
    let mut pieces = 0;
    let mut count = |step| {
        pieces += u32::from(step == Step::PieceDone);
        ControlFlow::Continue(())
    };
    let link = write(&store, "base", &content, None, &mut count).unwrap().link();
    // The first region is 1 MiB and a bit, the second small, the third two and a bit.
    assert_eq!(pieces, 2 + 1 + 3);
    assert_eq!(load(&store, "base"), content);
    for page in 0..1003 {
        content.set(page, u8::try_from(page % 254 + 2).unwrap());
    }
    store.diff("diff", &link, &content);
    assert_eq!(load(&store, "diff"), content);
}

#[test]
fn only_candidates_are_looked_at() {
    let store = TestStore::new();
    let content = memory(&[1, 2, 3, 4]);
    let mut candidates = [1..2, 2..2, 3..4].into_iter();
    let link = store.write(new_snapshot("base", &content, None), &mut candidates, &mut go_on).unwrap().link();
    assert_eq!(load(&store, "base"), memory(&[0, 2, 0, 4]));
    let before = forever(memory(&[0, 2, 0, 4]));
    let new = new_snapshot("diff", &content, base(&link, before));
    store.write(new, &mut std::iter::once(2..4), &mut go_on).unwrap();
    assert_eq!(load(&store, "diff"), memory(&[0, 2, 3, 4]));
}

#[test]
fn candidates_out_of_order_or_out_of_bounds_are_refused() {
    let store = TestStore::new();
    let content = memory(&[1, 2, 3, 4]);
    for bad in [&[(2, 3), (1, 2)][..], &[(0, 2), (1, 3)], &[(3, 5)], &[(3, 2)], &[(9, 9)]] {
        let mut bad = bad.iter().map(|&(first, end)| first..end);
        let new = new_snapshot("base", &content, None);
        let error = store.write(new, &mut bad, &mut go_on).unwrap_err();
        assert!(matches!(error, WriteError::Candidates { .. }), "{error}");
    }
    assert!(names(store.path()).is_empty());
}

#[test]
fn what_cannot_be_written_is_refused_before_anything_is() {
    let store = TestStore::new();
    let content = forever(memory(&[1, 2]));
    let link = store.full("base", content);
    let begun = &mut |step| panic!("{step:?}");
    let mut attempt = |new: NewSnapshot<'_>| store.write(new, &mut std::iter::empty(), begun).unwrap_err();

    let error = attempt(new_snapshot("base", content, None));
    assert!(matches!(error, WriteError::Exists { .. }), "{error}");
    let nobody = Link { tag: tag("nobody"), digest: link.digest };
    let error = attempt(new_snapshot("new", content, base(&nobody, content)));
    assert!(matches!(error, WriteError::Parent(ChainError::Missing { .. })), "{error}");
    let other = Link { tag: tag("base"), digest: Digest::of(b"other") };
    let error = attempt(new_snapshot("new", content, base(&other, content)));
    assert!(matches!(error, WriteError::WrongParent { .. }), "{error}");
    let larger = forever(memory(&[1, 2, 3]));
    for (memory, before) in [(content, larger), (larger, content), (larger, larger)] {
        let error = attempt(new_snapshot("new", memory, base(&link, before)));
        assert!(matches!(error, WriteError::OtherMemory), "{error}");
    }
    let mut new = new_snapshot("new", content, None);
    new.cpu.features.push("with space".into());
    assert!(matches!(attempt(new), WriteError::Description(_)));
    let state = vec![0; usize::try_from(MAX_STATE).unwrap()];
    let mut new = new_snapshot("new", content, None);
    new.state = &state;
    assert!(matches!(attempt(new), WriteError::StateTooLarge { .. }));
    assert_eq!(names(store.path()), ["base"]);
}

#[test]
fn a_name_or_a_parent_that_changes_meanwhile_is_noticed() {
    let store = TestStore::new();
    let content = forever(memory(&[1, 2]));
    let rival = &mut |step| {
        if step == Step::ManifestWritten {
            store.full("base", &memory(&[7]));
        }
        ControlFlow::Continue(())
    };
    let error = write(&store, "base", content, None, rival).unwrap_err();
    assert!(matches!(error, WriteError::Exists { .. }), "{error}");
    assert_eq!(load(&store, "base"), memory(&[7]));

    let link = store.full("parent", content);
    let remover = &mut |step| {
        if step == Step::ManifestWritten {
            store.remove(&tag("parent")).unwrap();
        }
        ControlFlow::Continue(())
    };
    let error = write(&store, "diff", content, base(&link, content), remover).unwrap_err();
    assert!(matches!(error, WriteError::Parent(ChainError::Missing { .. })), "{error}");
    assert_eq!(names(store.path()), ["base"]);
}

#[test]
fn a_source_that_fails_leaves_nothing() {
    struct Broken(Memory);
    impl PageSource for Broken {
        fn layout(&self) -> &crate::layout::Layout {
            &self.0.layout
        }
        fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::Error::other("gone"))
        }
    }
    let store = TestStore::new();
    let broken = Broken(memory(&[1, 2, 3]));
    let content = memory(&[1, 2, 3]);
    let mut new = new_snapshot("base", &content, None);
    new.memory = &broken;
    let error = store.write(new, &mut std::iter::once(1..2), &mut go_on).unwrap_err();
    assert!(matches!(error, WriteError::Source { page: 1, .. }), "{error}");
    assert!(names(store.path()).is_empty());
}

/// Snapshots that are large enough to have several blocks, so that they have every kind of step.
const KILLED_PAGES: u64 = 600;

fn killed_memory(first: u8) -> &'static Memory {
    let mut memory = Memory::of_regions(&[KILLED_PAGES]);
    for page in 0..KILLED_PAGES {
        memory.set(page, first + u8::try_from(page % 100).unwrap());
    }
    forever(memory)
}

/// Writes `head`, a diff of `base` if that is there, and tells each step.
fn write_head(store: &Store, observe: &mut Observer<'_>) -> Result<Stored, WriteError> {
    let parent = store.list().unwrap().into_iter().find(|listed| listed.tag == tag("base"));
    let parent = parent.map(|listed| listed.stored.unwrap().link());
    let before = killed_memory(1);
    let base = parent.and_then(|link| base(&link, before));
    write(store, "head", killed_memory(2), base, observe)
}

/// The steps of writing `head`, in order.
fn steps_of_head(diff: bool) -> Vec<Step> {
    let store = TestStore::new();
    if diff {
        store.full("base", killed_memory(1));
    }
    let mut steps = Vec::new();
    write_head(&store, &mut |step| {
        steps.push(step);
        ControlFlow::Continue(())
    })
    .unwrap();
    steps
}

#[test]
fn the_steps_are_those_of_the_picture() {
    use Step::*;
    let steps = [
        Begun,
        StateWritten,
        PieceDone,
        PieceDone,
        PieceDone,
        MemoryWritten,
        RunsWritten,
        MemorySealed,
        ManifestWritten,
        DirectorySynced,
        Published,
    ];
    assert_eq!(steps_of_head(false), steps);
    assert_eq!(steps_of_head(true), steps);
}

#[test]
fn stopped_at_any_step_nothing_is_left() {
    for diff in [false, true] {
        for (at, step) in steps_of_head(diff).into_iter().enumerate() {
            let store = TestStore::new();
            if diff {
                store.full("base", killed_memory(1));
            }
            let mut reached = 0;
            let result = write_head(&store, &mut |_| {
                reached += 1;
                if reached > at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let published = step == Step::Published;
            assert_eq!(result.is_ok(), published, "{step:?}");
            let mut expected = vec![];
            expected.extend(diff.then_some("base"));
            expected.extend(published.then_some("head"));
            assert_eq!(names(store.path()), expected, "{step:?}");
        }
    }
}

const KILLED_STORE: &str = "FORKD_STORE_TEST_KILLED_STORE";
const KILLED_STEP: &str = "FORKD_STORE_TEST_KILLED_STEP";

/// Not a test of its own: the process that the next test starts and that kills itself.
#[test]
fn the_process_that_is_killed() {
    let (Some(store), Ok(at)) = (std::env::var_os(KILLED_STORE), std::env::var(KILLED_STEP)) else {
        return;
    };
    let mut left: usize = at.parse().unwrap();
    let _ = write_head(&Store::new(store), &mut |_| {
        if left == 0 {
            let own = rustix::process::getpid();
            rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
        }
        left -= 1;
        ControlFlow::Continue(())
    });
}

#[test]
fn killed_at_any_step_there_is_a_whole_snapshot_or_none() {
    for diff in [false, true] {
        for (at, step) in steps_of_head(diff).into_iter().enumerate() {
            let store = TestStore::new();
            if diff {
                store.full("base", killed_memory(1));
            }
            let killed = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "write::tests::the_process_that_is_killed"])
                .env(KILLED_STORE, store.path())
                .env(KILLED_STEP, at.to_string())
                .output()
                .unwrap();
            assert_eq!(killed.status.signal(), Some(9), "{step:?}");
            let tags: Vec<_> = store.list().unwrap().into_iter().map(|listed| listed.tag).collect();
            assert_eq!(tags.contains(&tag("head")), step == Step::Published, "{step:?}");
            assert_eq!(store.sweep().unwrap(), usize::from(step != Step::Published), "{step:?}");
            assert_eq!(names(store.path()).len(), tags.len());
            if step != Step::Published {
                // The same name can be written again.
                write_head(&store, &mut go_on).unwrap();
            }
            assert!(load(&store, "head") == *killed_memory(2), "{step:?}");
        }
    }
}

#[test]
fn a_loaded_snapshot_written_again_is_equal() {
    let store = TestStore::new();
    let mut content = memory(&[1, 0, 3, 4, 5]);
    let first = store.full("base", &content);
    content.set(2, 0);
    content.set(1, 8);
    store.diff("diff", &first, &content);

    // Under another name: all that is sealed is equal.
    let again = load(&store, "diff");
    store.diff("diff-again", &first, &again);
    let full_again = load(&store, "base");
    store.full("base-again", &full_again);
    for (one, other) in [("diff", "diff-again"), ("base", "base-again")] {
        assert_eq!(store.stored(one).sealed, store.stored(other).sealed);
    }

    // Under the same tag and with the same time in another store: every byte is equal.
    let twin = TestStore::new();
    assert_eq!(twin.full("base", &full_again), first);
    twin.diff("diff", &first, &again);
    for tag in ["base", "diff"] {
        for name in names(&store.path().join(tag)) {
            let read = |store: &TestStore| fs::read(store.path().join(tag).join(&name)).unwrap();
            assert!(read(&store) == read(&twin), "{tag}/{name}");
        }
    }
}

/// A page is given a value; zero makes it a hole again.
type Change = (u64, u8);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_chain_gives_back_every_generation(
        regions in proptest::collection::vec(1u64..20, 1..4),
        first in proptest::collection::vec((0u64..60, 0u8..4), 0..40),
        generations in proptest::collection::vec(proptest::collection::vec((0u64..60, 0u8..4), 0..12), 0..16),
    ) {
        let apply = |memory: &mut Memory, changes: &[Change]| {
            for &(page, value) in changes {
                memory.set(page % memory.pages(), value);
            }
        };
        let store = TestStore::new();
        let mut content = Memory::of_regions(&regions);
        apply(&mut content, &first);
        let mut link = store.full("s0", &content);
        let mut oracle = vec![content.clone()];
        for (number, changes) in (1..).zip(&generations) {
            let before = content.clone();
            apply(&mut content, changes);
            let name = format!("s{number}");
            // Both ways to have a base: the chain on disk, and memory with the touched pages as candidates.
            link = if number % 2 == 0 {
                store.diff(&name, &link, &content)
            } else {
                let mut touched: Vec<u64> = changes.iter().map(|(page, _)| page % content.pages()).collect();
                touched.sort_unstable();
                touched.dedup();
                let base = Base { parent: link.clone(), memory: &before };
                let mut candidates = touched.into_iter().map(|page| page..page + 1);
                let new = new_snapshot(&name, &content, Some(base));
                store.write(new, &mut candidates, &mut go_on).unwrap().link()
            };
            let pairs = content.bytes.chunks(PAGE_SIZE).zip(before.bytes.chunks(PAGE_SIZE));
            let stored = pairs.filter(|(now, then)| now != then && !is_zero(now)).count() as u64;
            let length = fs::metadata(store.path().join(&name).join("memory.bin")).unwrap().len();
            prop_assert_eq!(length, stored * PAGE_BYTES);
            oracle.push(content.clone());
        }
        let head = oracle.len() - 1;
        for number in [0, head / 2, head] {
            prop_assert_eq!(&load(&store, &format!("s{number}")), &oracle[number]);
        }
        let chain = Chain::load(&store, &tag(&format!("s{head}"))).unwrap();
        for page in 0..content.pages() {
            let mut found = vec![0; PAGE_SIZE];
            chain.read(page, &mut found).unwrap();
            let at = usize::try_from(page).unwrap() * PAGE_SIZE;
            prop_assert_eq!(&found[..], &content.bytes[at..at + PAGE_SIZE]);
        }
    }
}
