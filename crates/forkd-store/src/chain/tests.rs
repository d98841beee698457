//! Tests of chains: what is one, and what only looks like one.

use super::*;
use crate::assemble::AssembleError;
use crate::files;
use crate::manifest::Link;
use crate::testing::{Memory, TestStore, memory, tag};
use std::fs;
use std::io::{Seek, SeekFrom};

fn refused(store: &TestStore, name: &str) -> ChainError {
    Chain::load(store, &tag(name)).unwrap_err()
}

/// Loads and reads all of the memory, which is where frames are checked.
fn damaged(store: &TestStore, name: &str) -> OpenError {
    let chain = match Chain::load(store, &tag(name)) {
        Ok(chain) => chain,
        Err(ChainError::Snapshot(error)) => return error,
        Err(other) => panic!("{other}"),
    };
    let pages: Vec<_> = chain.layout().regions().iter().map(|region| region.length / PAGE_BYTES).collect();
    match chain.assemble(&Memory::of_regions(&pages)).unwrap_err() {
        AssembleError::Memory(error) => error,
        other => panic!("{other}"),
    }
}

fn three() -> TestStore {
    let store = TestStore::new();
    let base = store.full("base", &memory(&[1, 2]));
    let middle = store.diff("middle", &base, &memory(&[1, 3]));
    store.diff("head", &middle, &memory(&[4, 3]));
    store
}

/// Seals the manifest of `name` again, changed; returns its new link.
fn forge(store: &TestStore, name: &str, change: impl FnOnce(&mut Manifest)) -> Link {
    let directory = store.path().join(name);
    let mut manifest = store.manifest(name);
    change(&mut manifest);
    let (sealed, bytes) = manifest.seal().unwrap();
    fs::write(directory.join(files::MANIFEST), bytes).unwrap();
    Link { tag: tag(name), digest: sealed.digest }
}

#[test]
fn a_chain_goes_from_the_base_to_the_head() {
    let chain = Chain::load(&three(), &tag("head")).unwrap();
    let tags: Vec<_> = chain.snapshots().iter().map(Snapshot::label).collect();
    assert_eq!(tags, ["base", "middle", "head"]);
    let mut pages = vec![0; 2 * PAGE_SIZE];
    chain.read(0, &mut pages).unwrap();
    assert_eq!((pages[0], pages[PAGE_SIZE]), (4, 3));
    assert!(chain.read(1, &mut pages).is_err());
}

#[test]
fn a_missing_snapshot_and_a_missing_parent_are_told_apart() {
    let store = three();
    let path = store.path().display().to_string();
    assert_eq!(refused(&store, "nobody").to_string(), format!("there is no snapshot nobody in {path}"));
    fs::remove_dir_all(store.path().join("base")).unwrap();
    let error = refused(&store, "head").to_string();
    let text = format!(
        "snapshot middle needs its parent base, which is not in {path}: the manifest of that has the digest "
    );
    assert!(error.starts_with(&text), "{error}");
}

#[test]
fn another_snapshot_of_the_same_tag_is_the_wrong_parent() {
    let store = three();
    fs::remove_dir_all(store.path().join("base")).unwrap();
    let other = store.full("base", &memory(&[1, 9]));
    let error = refused(&store, "head");
    assert!(
        matches!(&error, ChainError::WrongParent { child, found, .. } if child == "middle" && *found == other.digest),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("expected") && text.contains(&other.digest.to_string()), "{text}");
}

#[test]
fn damage_anywhere_in_the_chain_is_found() {
    for name in ["base", "middle", "head"] {
        let store = TestStore::new();
        let base = store.full("base", &memory(&[1, 2, 3]));
        let middle = store.diff("middle", &base, &memory(&[1, 4, 3]));
        store.diff("head", &middle, &memory(&[1, 4, 5]));
        let file = store.path().join(name).join(files::MEMORY);
        let mut bytes = fs::read(&file).unwrap();
        bytes[100] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert_eq!(
            damaged(&store, "head").to_string().split(':').next().unwrap(),
            format!("{} is damaged", file.display())
        );
    }
}

#[test]
fn a_parent_is_found_by_its_digest_under_any_name() {
    let store = three();
    fs::rename(store.path().join("base"), store.path().join("renamed")).unwrap();
    let chain = Chain::load(&store, &tag("head")).unwrap();
    let tags: Vec<_> = chain.snapshots().iter().map(Snapshot::label).collect();
    assert_eq!(tags, ["renamed", "middle", "head"]);
    // Another one has its name now.
    store.full("base", &memory(&[8, 8]));
    assert_eq!(Chain::load(&store, &tag("head")).unwrap().snapshots().len(), 3);
    let ancestry = store.ancestry(&tag("head")).unwrap();
    let tags: Vec<_> = ancestry.iter().map(|stored| stored.tag.as_str()).collect();
    assert_eq!(tags, ["head", "middle", "renamed"]);
}

#[test]
fn other_memory_regions_are_refused() {
    let store = three();
    let larger = store.full("larger", &memory(&[1, 2, 3]));
    forge(&store, "middle", |manifest| manifest.parent = Some(larger.digest));
    assert!(matches!(refused(&store, "middle"), ChainError::OtherMemory { .. }));
}

#[test]
fn a_chain_that_is_too_deep_is_refused() {
    let store = TestStore::new();
    let mut link = store.full("s0", &memory(&[1, 2]));
    link = store.diff("s1", &link, &memory(&[1, 3]));
    for depth in 2..=MAX_CHAIN {
        // The next one is a copy with another parent, which it does not know by its name.
        let (from, to) = (store.path().join("s1"), store.path().join(format!("s{depth}")));
        fs::create_dir(&to).unwrap();
        for name in [files::MANIFEST, files::STATE, files::MEMORY, files::MAP, files::LOCAL] {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
        let name = format!("s{depth}");
        link = forge(&store, &name, |manifest| manifest.parent = Some(link.digest));
    }
    assert_eq!(link.tag, tag("s48"));
    assert!(matches!(refused(&store, "s48"), ChainError::TooDeep { tag: head } if head == tag("s48")));
    let chain = Chain::load(&store, &tag("s47")).unwrap();
    assert_eq!(chain.snapshots().len(), MAX_CHAIN);
    let error = store.draft(&tag("one-more"), Some(&store.link("s47"))).unwrap_err();
    assert_eq!(error.to_string(), "the chain of s47 has 48 snapshots already; write a full one");
    let mut files = store.open_chain(&tag("s47")).unwrap();
    files.push(store.files("s48"));
    assert!(matches!(Chain::open(files), Err(ChainError::Count { found: 49 })));
    assert!(matches!(Chain::open(Vec::new()), Err(ChainError::Count { found: 0 })));
}

/// Opens a chain of snapshots that a process was handed in this order.
fn hand_over(store: &TestStore, names: &[&str]) -> Result<Chain, ChainError> {
    Chain::open(names.iter().map(|name| store.files(name)).collect())
}

#[test]
fn a_process_needs_the_files_and_nothing_else() {
    let store = three();
    let mut files = store.open_chain(&tag("head")).unwrap();
    let given: Vec<_> = files.iter().map(|files| (files.state.is_some(), files.map.is_some())).collect();
    assert_eq!(given, [(false, true), (false, true), (true, true)]);
    // The sender shares their positions, and the names may be gone.
    for files in &mut files {
        let all = [Some(&files.manifest), files.state.as_ref(), Some(&files.memory), files.map.as_ref()];
        for mut file in all.into_iter().flatten() {
            file.seek(SeekFrom::End(7)).unwrap();
        }
        files.name = format!("somewhere/{}", files.name.file_name().unwrap().to_str().unwrap()).into();
    }
    for name in ["head", "middle", "base"] {
        store.remove(&tag(name)).unwrap();
    }
    let chain = Chain::open(files).unwrap();
    let found = Memory::of_regions(&[2]);
    chain.assemble(&found).unwrap();
    assert!(found.received() == memory(&[4, 3]));
    assert_eq!(chain.state().payload(), b"registers");
}

#[test]
fn what_is_handed_over_is_called_by_its_name() {
    let store = three();
    let mut files = store.files("base");
    files.name = "snapshots/base".into();
    files.memory = tempfile::tempfile().unwrap();
    let error = Chain::open(vec![files]).unwrap_err();
    assert_eq!(error.to_string(), "snapshots/base/memory.bin is truncated: 0 bytes, expected 8192");
}

#[test]
fn files_that_are_missing_surplus_or_of_another_snapshot_are_refused() {
    let store = three();
    let refused = |change: &dyn Fn(&mut [SnapshotFiles])| {
        let mut files = store.open_chain(&tag("head")).unwrap();
        change(&mut files);
        match Chain::open(files).unwrap_err() {
            ChainError::Snapshot(error) => error,
            other => panic!("{other}"),
        }
    };
    let error = refused(&|files| files[2].state = None);
    assert!(error.to_string().ends_with("head/state.bin was not handed over"), "{error}");
    let error = refused(&|files| files[1].map = None);
    assert!(error.to_string().ends_with("middle/memory.map was not handed over"), "{error}");
    let error = refused(&|files| files[1].map = store.files("head").map);
    assert!(matches!(error, OpenError::Digest { .. }), "{error}");
    let error = refused(&|files| files[2].state = fs::File::open(store.path()).ok());
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[test]
fn a_map_that_no_manifest_lists_is_refused() {
    let (store, _) = TestStore::of_version_1();
    let mut files = store.open_chain(&tag("base")).unwrap();
    files[0].map = store.files("head").map;
    assert!(matches!(Chain::open(files), Err(ChainError::Snapshot(OpenError::NotListed { .. }))));
}

#[test]
fn damage_in_any_block_of_any_memory_is_found() {
    let store = TestStore::new();
    let mut content = Memory::of_regions(&[600]);
    (0..600).filter(|page| page / 100 != 3).for_each(|page| content.set(page, 1));
    let base = store.full("base", &content);
    (0..600).filter(|page| page % 2 == 0).for_each(|page| content.set(page, 2));
    store.diff("head", &base, &content);
    for name in ["base", "head"] {
        let path = store.path().join(name).join(files::MEMORY);
        let file = fs::File::options().write(true).open(&path).unwrap();
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(1 << 18).chain([good.len() - 1]) {
            file.write_all_at(&[good[at] ^ 0x10], at as u64).unwrap();
            assert!(matches!(damaged(&store, "head"), OpenError::Frame { path: found, .. } if found == path));
            file.write_all_at(&good[at..=at], at as u64).unwrap();
        }
        for shorter in (0..good.len()).step_by(1 << 18) {
            file.set_len(shorter as u64).unwrap();
            assert!(
                matches!(damaged(&store, "head"), OpenError::Truncated { path: found, .. } if found == path)
            );
        }
        file.write_all_at(&good, 0).unwrap();
        Chain::load(&store, &tag("head")).unwrap();
    }
}

/// Every sequence of up to four of five snapshots.
#[test]
fn only_a_chain_in_its_order_is_one() {
    let store = three();
    store.diff("other", &store.link("base"), &memory(&[8, 8]));
    store.full("full", &memory(&[5, 2]));
    let chains = [&["base", "middle", "head"][..], &["base", "other"], &["full"]];
    let mut sequences: Vec<Vec<&str>> = vec![vec![]];
    for length in 0..=4 {
        for names in &sequences {
            let valid = length > 0 && chains.iter().any(|chain| chain.starts_with(names));
            assert_eq!(hand_over(&store, names).is_ok(), valid, "{names:?}");
        }
        let all = ["base", "middle", "head", "other", "full"];
        let longer = sequences.iter().flat_map(|names| all.map(|name| [&names[..], &[name]].concat()));
        sequences = longer.collect();
    }
}
