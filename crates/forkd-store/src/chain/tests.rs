//! Tests of chains: what is one, and what only looks like one.

use super::*;
use crate::digest::Digest;
use crate::files;
use crate::manifest::Content;
use crate::testing::{Memory, TestStore, memory, tag};
use std::fs;
use std::io::{Seek, SeekFrom};

fn refused(store: &TestStore, name: &str) -> ChainError {
    Chain::load(store, &tag(name)).unwrap_err()
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
    sealed.link()
}

fn set_parent(manifest: &mut Manifest, link: Link) {
    match &mut manifest.content {
        Content::Diff { parent, .. } => *parent = link,
        Content::Full => panic!("not a diff"),
    }
}

#[test]
fn a_chain_goes_from_the_base_to_the_head() {
    let chain = Chain::load(&three(), &tag("head")).unwrap();
    let tags: Vec<_> = chain.snapshots().iter().map(|s| s.manifest().tag.as_str()).collect();
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
    assert_eq!(
        refused(&store, "head").to_string(),
        format!("snapshot middle needs its parent base, which is not in {path}")
    );
}

#[test]
fn another_snapshot_of_the_same_tag_is_the_wrong_parent() {
    let store = three();
    fs::remove_dir_all(store.path().join("base")).unwrap();
    let other = store.full("base", &memory(&[1, 9]));
    let error = refused(&store, "head");
    assert!(
        matches!(&error, ChainError::WrongParent { child, found, .. }
            if *child == tag("middle") && **found == other),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains("expected") && text.contains(&other.digest.to_string()), "{text}");
}

#[test]
fn damage_anywhere_in_the_chain_is_found() {
    for name in ["base", "middle", "head"] {
        let store = three();
        let file = store.path().join(name).join(files::MEMORY);
        let mut bytes = fs::read(&file).unwrap();
        bytes[100] ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(
            matches!(refused(&store, "head"), ChainError::Snapshot(OpenError::Digest { path, .. }) if path == file)
        );
    }
}

#[test]
fn a_snapshot_that_is_its_own_ancestor_is_refused() {
    let store = three();
    let nobody = |name| Link { tag: tag(name), digest: Digest::of(b"") };
    forge(&store, "middle", |manifest| set_parent(manifest, nobody("middle")));
    assert!(matches!(refused(&store, "middle"), ChainError::Loop { .. }));
    let middle = forge(&store, "middle", |manifest| set_parent(manifest, nobody("head")));
    forge(&store, "head", |manifest| set_parent(manifest, middle));
    assert!(matches!(refused(&store, "head"), ChainError::Loop { .. }));
}

#[test]
fn a_renamed_directory_is_refused() {
    let store = three();
    fs::rename(store.path().join("base"), store.path().join("stolen")).unwrap();
    assert_eq!(
        refused(&store, "stolen").to_string(),
        "the directory of snapshot stolen has the manifest of base"
    );
}

#[test]
fn other_memory_regions_are_refused() {
    let store = three();
    let larger = store.full("larger", &memory(&[1, 2, 3]));
    forge(&store, "middle", |manifest| set_parent(manifest, larger));
    assert!(matches!(refused(&store, "middle"), ChainError::OtherMemory { .. }));
}

#[test]
fn a_chain_that_is_too_deep_is_refused() {
    let store = TestStore::new();
    let mut link = store.full("s0", &memory(&[1, 2]));
    link = store.diff("s1", &link, &memory(&[1, 3]));
    for depth in 2..=MAX_CHAIN {
        // The next one is a copy of the last with another tag and parent.
        let (from, to) = (store.path().join("s1"), store.path().join(format!("s{depth}")));
        fs::create_dir(&to).unwrap();
        for name in [files::MANIFEST, files::STATE, files::MEMORY, files::MAP] {
            fs::copy(from.join(name), to.join(name)).unwrap();
        }
        let name = format!("s{depth}");
        link = forge(&store, &name, |manifest| {
            manifest.tag = tag(&name);
            set_parent(manifest, link.clone());
        });
    }
    assert_eq!(link.tag, tag("s48"));
    assert!(matches!(refused(&store, "s48"), ChainError::TooDeep { tag: head } if head == tag("s48")));
    let chain = Chain::load(&store, &tag("s47")).unwrap();
    assert_eq!(chain.snapshots().len(), MAX_CHAIN);
    let error = store.draft(&tag("one-more"), Some(&chain.head().sealed().link())).unwrap_err();
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
    assert_eq!(given, [(false, false), (false, true), (true, true)]);
    // Whoever handed them over shares their positions, and the names may be gone.
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
    let mut found = Memory::of_regions(&[2]);
    chain.assemble(&mut found).unwrap();
    assert_eq!(found.bytes, memory(&[4, 3]).bytes);
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
    let error = refused(&|files| files[0].map = store.files("head").map);
    assert!(matches!(error, OpenError::NotListed { .. }), "{error}");
    let error = refused(&|files| files[2].memory = store.files("middle").memory);
    assert!(matches!(error, OpenError::Digest { .. }), "{error}");
    let error = refused(&|files| files[1].map = store.files("head").map);
    assert!(matches!(error, OpenError::Digest { .. }), "{error}");
    let error = refused(&|files| files[2].state = fs::File::open(store.path()).ok());
    assert!(matches!(error, OpenError::Io { .. }), "{error}");
}

#[test]
fn a_parent_of_another_name_is_refused_though_its_digest_is_right() {
    let store = three();
    let other = Link { tag: tag("other"), digest: store.link("base").digest };
    forge(&store, "middle", |manifest| set_parent(manifest, other));
    let error = hand_over(&store, &["base", "middle"]).unwrap_err();
    assert!(matches!(error, ChainError::WrongParent { .. }), "{error}");
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
            assert!(matches!(
                refused(&store, "head"),
                ChainError::Snapshot(OpenError::Digest { path: found, .. }) if found == path
            ));
            file.write_all_at(&good[at..=at], at as u64).unwrap();
        }
        for shorter in (0..good.len()).step_by(1 << 18) {
            file.set_len(shorter as u64).unwrap();
            assert!(matches!(
                refused(&store, "head"),
                ChainError::Snapshot(OpenError::Truncated { path: found, .. }) if found == path
            ));
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
    store.full("full", &memory(&[1, 2]));
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
