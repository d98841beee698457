//! Tests of sealing: what a process wrote becomes a snapshot, and what it only says it wrote does not.

use super::*;
use crate::chain::{Chain, ChainError};
use crate::contents::{NewContents, NewFiles, write_contents};
use crate::layout::{PAGE_SIZE, Region};
use crate::manifest::{About, ManifestError};
use crate::page::PageSource;
use crate::testing::{Memory, TestStore, cpu, memory, tag};

fn description(memory: &Memory) -> Description {
    Description {
        created_unix_ms: 1,
        cpu: cpu(&["sse4_2", "avx2", "avx2"]),
        layout: memory.layout.clone(),
        about: About::from_iter([("vcpus".to_owned(), 2.into())]),
        local: About::from_iter([("project".to_owned(), "one".into())]),
        disk_layers: vec![],
    }
}

/// What the process does: it gets files.
fn process(files: &NewFiles, memory: &Memory, base: Option<&dyn PageSource>) {
    let new = NewContents { state_version: 3, state: b"registers", memory, base };
    let candidates = &mut std::iter::once(0..memory.pages());
    write_contents(files, &new, candidates, &mut |_| ControlFlow::Continue(())).unwrap();
}

/// Seals what was written, and gives it its name.
fn publish(draft: Draft, description: Description) -> Result<Stored, WriteError> {
    let draft = draft.settle()?;
    let hashed = draft.unhashed()?.hash()?;
    draft.publish(description, hashed)
}

fn count(store: &TestStore) -> usize {
    fs::read_dir(store.path()).unwrap().count()
}

/// A store with `base`, a draft of a diff of it whose contents are written, and the writer's files.
fn written_diff() -> (TestStore, Memory, Draft, NewFiles) {
    let store = TestStore::new();
    let link = store.full("base", &memory(&[1, 2, 3]));
    let after = memory(&[1, 7, 0]);
    let draft = store.draft(&tag("head"), Some(&link)).unwrap();
    let chain = Chain::open(store.open_chain(&tag("base")).unwrap()).unwrap();
    let files = draft.files().unwrap();
    process(&files, &after, Some(&chain));
    (store, after, draft, files)
}

#[test]
fn the_halves_make_a_snapshot_that_appears_when_it_is_published() {
    let (store, after, draft, _) = written_diff();
    assert_eq!(store.list().unwrap().len(), 1);
    assert_eq!(store.sweep().unwrap(), 0);
    let stored = publish(draft, description(&after)).unwrap();
    assert_eq!(count(&store), 2);
    assert_eq!(store.stored("head"), stored);
    assert_eq!(stored.manifest().about["vcpus"], 2);
    assert_eq!((&stored.local.about["project"], &stored.local.parent), (&"one".into(), &Some(tag("base"))));
    assert_eq!(stored.manifest().cpu.features, ["avx2", "sse4_2"]);
    let found = Memory::of_regions(&[3]);
    Chain::load(&store, &tag("head")).unwrap().assemble(&found).unwrap();
    assert!(found.received() == after);
}

#[test]
fn a_draft_that_is_dropped_leaves_nothing() {
    let (store, _, draft, kept) = written_diff();
    assert_eq!(count(&store), 2);
    drop(draft);
    assert_eq!(count(&store), 1);
    // The process may notice later.
    kept.memory.sync_all().unwrap();
    drop(store.draft(&tag("head"), None).unwrap().settle().unwrap());
    assert_eq!(count(&store), 1);
}

#[test]
fn what_a_process_wrote_is_not_believed() {
    let refused = |lie: &dyn Fn(&NewFiles, &mut Description)| {
        let (store, after, draft, files) = written_diff();
        let mut description = description(&after);
        lie(&files, &mut description);
        let error = publish(draft, description).unwrap_err();
        assert_eq!(count(&store), 1, "{error}");
        error
    };
    let runs = |map: &PageMap| {
        let bytes = map.encode();
        move |files: &NewFiles, _: &mut Description| {
            files.runs.set_len(0).unwrap();
            files.runs.write_all_at(&bytes, 0).unwrap();
        }
    };
    let error = refused(&|files, _| files.memory.set_len(0).unwrap());
    let text = "memory.bin has 0 bytes, expected the 4096 that were announced";
    assert_eq!(error.to_string(), text);
    let mut two = PageMap::new(3);
    two.push(0, RunKind::Data).unwrap();
    two.push(1, RunKind::Data).unwrap();
    assert!(matches!(refused(&runs(&two)), WriteError::Size { .. }));
    assert!(matches!(refused(&runs(&PageMap::new(4))), WriteError::OtherMemory));
    let error = refused(&|files, _| files.runs.write_all_at(b"x", 130).unwrap());
    assert!(matches!(error, WriteError::Map(_)), "{error}");
    let error = refused(&|files, _| files.runs.set_len(1 << 40).unwrap());
    assert!(matches!(error, WriteError::TooLong { name: "memory.runs", .. }), "{error}");
    let error = refused(&|files, _| files.runs.set_len(0).unwrap());
    assert!(matches!(error, WriteError::Map(_)), "no diff is sparse: {error}");
    let error = refused(&|files, _| files.state.write_all_at(b"x", 100).unwrap());
    assert!(matches!(error, WriteError::State(_)), "{error}");
    let error = refused(&|files, _| files.state.set_len(1 << 40).unwrap());
    assert!(matches!(error, WriteError::TooLong { name: "state.bin", .. }), "{error}");
    let error = refused(&|_, description| description.layout = memory(&[1, 2]).layout);
    assert!(matches!(error, WriteError::OtherMemory), "{error}");
    let error = refused(&|_, description| description.cpu.features.push("with space".into()));
    assert!(matches!(error, WriteError::Description(ManifestError::FeatureName { .. })), "{error}");
}

#[test]
fn a_full_snapshot_has_no_pages_that_became_zero() {
    let store = TestStore::new();
    let content = memory(&[1, 2]);
    let draft = store.draft(&tag("new"), None).unwrap();
    let files = draft.files().unwrap();
    process(&files, &content, None);
    let mut map = PageMap::new(2);
    map.push(0, RunKind::Zero).unwrap();
    map.push(1, RunKind::Data).unwrap();
    files.memory.set_len(PAGE_BYTES).unwrap();
    files.runs.write_all_at(&map.encode(), 0).unwrap();
    let error = publish(draft, description(&content)).unwrap_err();
    assert!(matches!(error, WriteError::ZeroRuns), "{error}");
}

/// What is sealed are the bytes that are there, whatever the process has meant to write.
#[test]
fn the_digests_are_those_of_the_files() {
    let (store, after, draft, files) = written_diff();
    files.memory.write_all_at(&[9; PAGE_SIZE], 0).unwrap();
    drop(files);
    publish(draft, description(&after)).unwrap();
    let found = Memory::of_regions(&[3]);
    Chain::load(&store, &tag("head")).unwrap().assemble(&found).unwrap();
    assert!(found.received() == memory(&[1, 9, 0]));
}

#[test]
fn a_change_after_it_was_sealed_is_found_by_whoever_reads() {
    let (store, after, draft, kept) = written_diff();
    publish(draft, description(&after)).unwrap();
    let chain = Chain::load(&store, &tag("head")).unwrap();
    kept.memory.write_all_at(b"x", 77).unwrap();
    assert!(chain.assemble(&Memory::of_regions(&[3])).is_err());
    kept.memory.set_len(0).unwrap();
    let error = Chain::load(&store, &tag("head")).unwrap_err();
    assert!(matches!(error, ChainError::Snapshot(_)), "{error}");
}

#[test]
fn copies_are_the_store_s_own() {
    let (store, after, draft, kept) = written_diff();
    let mut settled = draft.settle().unwrap();
    settled.copy().unwrap();
    for file in [&kept.state, &kept.memory, &kept.runs] {
        file.write_all_at(&[0xaa; 4096], 0).unwrap();
    }
    let hashed = settled.unhashed().unwrap().hash().unwrap();
    settled.publish(description(&after), hashed).unwrap();
    let found = Memory::of_regions(&[3]);
    Chain::load(&store, &tag("head")).unwrap().assemble(&found).unwrap();
    assert!(found.received() == after);
}

/// A process of before pages were packed gets no file for runs.
#[test]
fn memory_that_was_written_sparse_is_packed() {
    let store = TestStore::new();
    let region = |address, pages| Region { address, length: pages * PAGE_BYTES };
    let layout = Layout::new(vec![region(0, 700), region(1 << 32, 5)]).unwrap();
    let mut content = Memory::of_regions(&[700, 5]);
    [0, 1, 5, 400, 699, 700, 704].into_iter().for_each(|page| content.set(page, 7));
    let draft = store.draft(&tag("new"), None).unwrap();
    let files = draft.files().unwrap();
    process(&files, &content, None);
    files.memory.set_len(0).unwrap();
    files.memory.set_len(layout.size()).unwrap();
    // With a page of zeroes that is not a hole.
    for page in [0, 1, 2, 5, 400, 699, 700, 704] {
        let at = usize::try_from(page * PAGE_BYTES).unwrap();
        files.memory.write_all_at(&content.bytes[at..at + PAGE_SIZE], page * PAGE_BYTES).unwrap();
    }
    files.runs.set_len(0).unwrap();
    let stored = publish(draft, Description { layout, ..description(&content) }).unwrap();
    assert_eq!(stored.manifest().memory.size, 7 * PAGE_BYTES);
    let found = Memory::of_regions(&[700, 5]);
    Chain::load(&store, &tag("new")).unwrap().assemble(&found).unwrap();
    assert!(found.received() == content);
}

#[test]
fn the_name_and_the_parent_are_checked_again_when_it_is_published() {
    let (store, after, draft, _) = written_diff();
    store.full("head", &memory(&[5]));
    let error = publish(draft, description(&after)).unwrap_err();
    assert!(matches!(error, WriteError::Exists { .. }), "{error}");

    for replaced in [false, true] {
        let (store, after, draft, _) = written_diff();
        store.remove(&tag("base")).unwrap();
        if replaced {
            store.full("base", &memory(&[9, 9, 9]));
        }
        let error = publish(draft, description(&after)).unwrap_err();
        match replaced {
            false => assert!(matches!(error, WriteError::Parent(ChainError::Missing { .. })), "{error}"),
            true => assert!(matches!(error, WriteError::WrongParent { .. }), "{error}"),
        }
        assert_eq!(count(&store), usize::from(replaced));
    }
}
