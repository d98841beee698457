//! Persist and Load: what was written is what is loaded, and what was damaged is not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use forkd_proto::control::{RefusalCode, StateName};
use forkd_store::{Chain, Cpu, SnapshotFiles, StateHeader, Store, Stored, Tag};
use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Control, Failure, TinyVm, Zygote, boot, start};
use forkd_tests::engine::snapshot::{Host, load, persist, try_load};
use forkd_tests::scale::count;
use serde_json::Value;

const MEMORY: u64 = 64 << 20;
const PAGE: u64 = 4096;

fn store() -> Result<(tempfile::TempDir, Store), Failure> {
    let directory = tempfile::tempdir()?;
    let store = Store::new(directory.path());
    Ok((directory, store))
}

/// A zygote whose guest has a counter of `sum` and 100 written pages.
fn zygote(sum: u64) -> Result<(forkd_tests::engine::process::Started, Zygote), Failure> {
    let (process, mut vm) = boot(MEMORY)?;
    vm.mailbox.order(Order::Add, sum, 0)?;
    vm.mailbox.order(Order::Dirty, FREE_MEMORY, 100)?;
    vm.mailbox.order(Order::Vector, 11, 31)?;
    Ok((process, vm.freeze()?))
}

#[test]
fn a_snapshot_is_a_zygote_again() -> Result<(), Failure> {
    let (_directory, store) = store()?;
    let (_process, mut zygote) = zygote(42)?;
    // Children run while it is written, and are forked meanwhile.
    let mut before = zygote.fork()?;
    let sealed = persist(&store, &mut zygote.control, "base", None, Vec::new())?;
    assert_eq!(before.mailbox.order(Order::Add, 1, 0)?, 43);
    assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 2, 0)?, 44);
    let cpu = &sealed.manifest().cpu;
    assert!(cpu.features.iter().any(|name| name == "sse2"), "{cpu:?}");
    assert!(cpu.vendor.is_some() && cpu.tsc_khz.is_some_and(|khz| khz > 0), "{cpu:?}");

    let (_loaded_process, mut loaded) = load(&store, "base")?;
    assert_eq!(loaded.control.stats()?.state, StateName::Zygote);
    let mut children: Vec<TinyVm> = (0..3).map(|_| loaded.fork()).collect::<Result<_, _>>()?;
    for (index, child) in (0..).zip(&mut children) {
        assert_eq!(child.mailbox.order(Order::Add, index, 0)?, 42 + index);
        assert_eq!(child.mailbox.order(Order::Read, FREE_MEMORY + 99 * PAGE, 0)?, 42);
        assert_eq!(child.mailbox.order(Order::Read, FREE_MEMORY + 100 * PAGE, 0)?, 0);
        assert_eq!(child.mailbox.order(Order::Vector, 0, 0)?, 42);
    }
    Ok(())
}

/// Each snapshot has only what differs from the one below, and each depth loads to what it was.
#[test]
fn a_chain_keeps_only_differences() -> Result<(), Failure> {
    const DEPTH: u64 = 4;
    let (_directory, store) = store()?;
    let (_process, mut first) = zygote(1)?;
    let mut parent = persist(&store, &mut first.control, "depth-0", None, Vec::new())?;
    let mut vm = first.fork()?;
    for depth in 1..=DEPTH {
        vm.mailbox.order(Order::Add, 1, 0)?;
        vm.mailbox.order(Order::Dirty, FREE_MEMORY + (200 + depth) * PAGE, 3)?;
        // Back to zero: a page that the base has and this one has not.
        vm.mailbox.order(Order::Write, FREE_MEMORY + depth * PAGE, 0)?;
        let (mut branch, _) = vm.branch()?;
        parent = persist(&store, &mut branch.control, &format!("depth-{depth}"), Some(&parent), Vec::new())?;
        let pages = parent.manifest().memory.size / PAGE;
        assert!((3..20).contains(&pages), "{pages} pages in a diff of a few");
    }
    for depth in 0..=DEPTH {
        let (_process, mut loaded) = load(&store, &format!("depth-{depth}"))?;
        let mut child = loaded.fork()?;
        assert_eq!(child.mailbox.order(Order::Add, 0, 0)?, 1 + depth);
        for page in 1..=DEPTH {
            let expected = u64::from(page > depth);
            assert_eq!(child.mailbox.order(Order::Read, FREE_MEMORY + page * PAGE, 0)?, expected);
        }
        if depth > 0 {
            let last = FREE_MEMORY + (200 + depth + 2) * PAGE;
            assert_eq!(child.mailbox.order(Order::Read, last, 0)?, 1 + depth);
        }
    }
    Ok(())
}

fn state_of(store: &Store, stored: &Stored) -> Result<Value, Failure> {
    let bytes = fs::read(store.path(&stored.tag).join("state.bin"))?;
    Ok(serde_json::from_slice(&bytes[StateHeader::LENGTH..])?)
}

/// A snapshot that is loaded and written again is the same, byte for byte. One of a child that ran for a moment differs in
/// what time and a new identity change, and in nothing else.
#[test]
fn a_snapshot_of_a_snapshot_is_equal() -> Result<(), Failure> {
    let (_directory, store) = store()?;
    let (_process, mut zygote) = zygote(42)?;
    let first = persist(&store, &mut zygote.control, "first", None, Vec::new())?;
    let (_loaded_process, mut loaded) = load(&store, "first")?;
    let second = persist(&store, &mut loaded.control, "second", None, Vec::new())?;
    assert_eq!(first.sealed, second.sealed);

    let mut child = loaded.fork()?;
    let (mut branch, _) = child.branch()?;
    let third = persist(&store, &mut branch.control, "third", Some(&first), Vec::new())?;
    // The page with the generation id.
    assert_eq!(third.manifest().memory.size, PAGE, "more than the identity has changed in memory");
    let (before, after) = (state_of(&store, &first)?, state_of(&store, &third)?);
    assert_eq!(before["devices"], after["devices"]);
    assert_eq!(before["vm"]["tsc_khz"], after["vm"]["tsc_khz"]);
    assert_eq!(before["vm"]["irqchips"], after["vm"]["irqchips"]);
    let (before, after) = (&before["vm"]["vcpus"][0], &after["vm"]["vcpus"][0]);
    let differing: Vec<&String> = before
        .as_object()
        .ok_or("no state of a vCPU")?
        .iter()
        .filter(|(name, value)| after[name.as_str()] != **value)
        .map(|(name, _)| name)
        .collect();
    // The guest waits for orders in a loop: its registers say where in it. MSRs have the time stamp counter.
    for name in &differing {
        assert!(["msrs", "regs"].contains(&name.as_str()), "{differing:?} differ");
    }
    Ok(())
}

/// Every byte of the state and the manifest, and every length of them: refused, by a process that goes on.
#[test]
fn damaged_files_are_refused() -> Result<(), Failure> {
    let (directory, store) = store()?;
    let (_process, mut zygote) = zygote(42)?;
    persist(&store, &mut zygote.control, "base", None, Vec::new())?;
    let (_empty_process, mut control) = start()?;
    let stride = usize::try_from(count(97, 1))?;
    for name in ["state.bin", "manifest.json", "memory.map"] {
        let path = directory.path().join("base").join(name);
        let good = fs::read(&path)?;
        for index in (0..good.len()).step_by(stride) {
            let mut bad = good.clone();
            bad[index] ^= 1 << (index % 8);
            fs::write(&path, &bad)?;
            refuse(&store, &mut control, &format!("{name} with byte {index} changed"))?;
        }
        for length in (0..good.len()).step_by(stride) {
            fs::write(&path, &good[..length])?;
            refuse(&store, &mut control, &format!("{name} of {length} bytes"))?;
        }
        fs::write(&path, &good)?;
    }
    let memory = File::options().read(true).write(true).open(directory.path().join("base/memory.bin"))?;
    let length = memory.metadata()?.len();
    let (mut byte, at) = ([0], length / 2);
    memory.read_exact_at(&mut byte, at)?;
    memory.write_all_at(&[byte[0] ^ 1], at)?;
    refuse(&store, &mut control, "memory.bin with a byte changed")?;
    memory.write_all_at(&byte, at)?;
    memory.set_len(length + 1)?;
    refuse(&store, &mut control, "a longer memory.bin")?;
    memory.set_len(length)?;

    // And the undamaged one is taken by the same process.
    let chain = store.open_chain(&"base".parse()?)?;
    try_load(&mut control, &chain, &Host::default())?.map_err(|refusal| refusal.message)?;
    assert_eq!(Zygote { control, pid: 0, disks: Vec::new() }.fork()?.mailbox.order(Order::Add, 0, 0)?, 42);
    Ok(())
}

/// The snapshot `base` is refused: by whoever opens its files, or by the process that is given them.
fn refuse(store: &Store, control: &mut Control, what: &str) -> Result<(), Failure> {
    if let Ok(chain) = store.open_chain(&"base".parse()?) {
        let refusal =
            try_load(control, &chain, &Host::default())?.err().ok_or(format!("{what} is loaded"))?;
        assert_eq!(refusal.code, RefusalCode::Failed, "{what}: {}", refusal.message);
        assert!(refusal.message.contains("base"), "{what}: {}", refusal.message);
        assert_eq!(control.stats()?.state, StateName::Empty, "{what}");
    }
    Ok(())
}

/// A snapshot whose author has made all digests right, and lies inside of the state.
#[test]
fn forged_states_never_hurt_the_zygote() -> Result<(), Failure> {
    let (directory, store) = store()?;
    let (_process, mut zygote) = zygote(42)?;
    let sealed = persist(&store, &mut zygote.control, "base", None, Vec::new())?;
    let original = state_of(&store, &sealed)?;

    let mut other = original.clone();
    other["vm"]["vcpus"] = Value::Array(Vec::new());
    refuse_forged(directory.path(), &store, &other, "0 vCPUs")?;
    other["vm"]["vcpus"] = Value::Array(vec![original["vm"]["vcpus"][0].clone(); 33]);
    refuse_forged(directory.path(), &store, &other, "33 vCPUs")?;
    let mut other = original.clone();
    other["devices"]["wanted"]["entropy"] = Value::Bool(true);
    refuse_forged(directory.path(), &store, &other, "devices")?;
    let mut other = original.clone();
    other["vm"]["extra"] = Value::Null;
    refuse_forged(directory.path(), &store, &other, "unknown field")?;
    // All features there are, and more: the manifest does not name them.
    let mut other = original.clone();
    for leaf in other["vm"]["vcpus"][0]["cpuid"].as_array_mut().ok_or("no CPUID")? {
        // The registers follow the leaf's number, its subleaf and flags.
        leaf.as_array_mut().ok_or("no leaf")?[12..28].fill(255.into());
    }
    refuse_forged(directory.path(), &store, &other, "other CPU features")?;

    // Registers that no CPU has: the child may die of them, the zygote does not.
    for part in ["regs", "sregs", "xsave", "lapic", "events", "msrs", "debug_regs", "xcrs", "mp_state"] {
        for value in [0xff, 0x80, 0x01] {
            let mut other = original.clone();
            fill(&mut other["vm"]["vcpus"][0][part], value);
            let chain = forge(directory.path(), &store, &other, None)?;
            let (_process, mut control) = start()?;
            if try_load(&mut control, &chain, &Host::default())?.is_ok() {
                let mut zygote = Zygote { control, pid: 0, disks: Vec::new() };
                let pending = zygote.ask()?;
                // Whether it runs or ends with last words is KVM's to say.
                zygote.accept(pending)?.first_words()?;
                assert_eq!(zygote.control.stats()?.state, StateName::Zygote, "{part} of {value}");
            }
        }
    }
    Ok(())
}

fn fill(value: &mut Value, byte: u8) {
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| fill(value, byte)),
        Value::Number(_) => *value = byte.into(),
        _ => {}
    }
}

/// Writes a snapshot `forged` with the memory of `base`, another state, and perhaps one CPU feature more.
fn forge(
    directory: &Path,
    store: &Store,
    state: &Value,
    feature: Option<&str>,
) -> Result<Vec<SnapshotFiles>, Failure> {
    let base: Tag = "base".parse()?;
    let chain = Chain::load(store, &base)?;
    let manifest = chain.manifest().clone();
    let forged: Tag = "forged".parse()?;
    if directory.join("forged").exists() {
        fs::remove_dir_all(directory.join("forged"))?;
    }
    let state = serde_json::to_vec(state)?;
    let new = forkd_store::NewSnapshot {
        tag: forged.clone(),
        created_unix_ms: 0,
        cpu: Cpu {
            features: manifest.cpu.features.into_iter().chain(feature.map(str::to_owned)).collect(),
            ..manifest.cpu
        },
        disk_layers: Vec::new(),
        state_version: 1,
        state: &state,
        memory: &chain,
        base: None,
    };
    let all = 0..manifest.layout.pages();
    store.write(new, &mut [all].into_iter(), &mut |_| std::ops::ControlFlow::Continue(()))?;
    Ok(store.open_chain(&forged)?)
}

fn refuse_forged(directory: &Path, store: &Store, state: &Value, words: &str) -> Result<(), Failure> {
    let chain = forge(directory, store, state, None)?;
    let (_process, mut control) = start()?;
    let refusal =
        try_load(&mut control, &chain, &Host::default())?.err().ok_or(format!("{words}: loaded"))?;
    assert!(refusal.message.contains(words), "{words}: {}", refusal.message);
    assert_eq!(control.stats()?.state, StateName::Empty);
    Ok(())
}

#[test]
fn what_this_host_cannot_run_is_refused() -> Result<(), Failure> {
    let (directory, store) = store()?;
    let (_process, mut zygote) = zygote(42)?;
    let base = persist(&store, &mut zygote.control, "base", None, Vec::new())?;
    let (_empty_process, mut control) = start()?;

    let chain = store.open_chain(&"base".parse()?)?;
    let small = Host { memory_limit_bytes: MEMORY - 1, ..Host::default() };
    let refusal = try_load(&mut control, &chain, &small)?.err().ok_or("loaded into too little memory")?;
    assert!(refusal.message.contains("64 MiB of memory"), "{}", refusal.message);

    // A guest that was told of a feature that few CPUs have ever had: leaf 7, EBX, bit 26.
    let mut state = state_of(&store, &base)?;
    let leaves = state["vm"]["vcpus"][0]["cpuid"].as_array_mut().ok_or("no CPUID")?;
    let leaf = leaves.iter_mut().find(|leaf| leaf[0] == 7 && leaf[4] == 0).ok_or("no leaf 7")?;
    leaf[19] = (leaf[19].as_u64().ok_or("no register")? | 4).into();
    let chain = forge(directory.path(), &store, &state, Some("avx512pf"))?;
    let refusal =
        try_load(&mut control, &chain, &Host::default())?.err().ok_or("loaded without a feature")?;
    assert!(refusal.message.ends_with("this host does not have: avx512pf"), "{}", refusal.message);

    // A diff without its parent, and with another.
    let mut vm = zygote.fork()?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    let (mut branch, _) = vm.branch()?;
    persist(&store, &mut branch.control, "diff", Some(&base), Vec::new())?;
    let mut alone = store.open_chain(&"diff".parse()?)?;
    alone.remove(0);
    let refusal =
        try_load(&mut control, &alone, &Host::default())?.err().ok_or("loaded without its parent")?;
    assert!(refusal.message.contains("diff"), "{}", refusal.message);
    fs::remove_dir_all(directory.path().join("base"))?;
    persist(&store, &mut branch.control, "base", None, Vec::new())?;
    let error = store.open_chain(&"diff".parse()?).err().ok_or("another parent is taken")?;
    assert!(error.to_string().contains("another parent"), "{error}");
    fs::remove_dir_all(directory.path().join("base"))?;
    let error = store.open_chain(&"diff".parse()?).err().ok_or("no parent is needed")?;
    assert!(error.to_string().contains("needs its parent base"), "{error}");
    Ok(())
}

/// Whoever is killed while it writes leaves a zygote that can be asked again, and no snapshot.
#[test]
fn a_killed_writer_leaves_nothing() -> Result<(), Failure> {
    let (directory, store) = store()?;
    let (_process, mut zygote) = zygote(42)?;
    for _ in 0..3 {
        let draft = store.draft(&"gone".parse()?, None)?;
        forkd_tests::engine::snapshot::persist_and_kill(&draft, &mut zygote)?;
    }
    assert_eq!(fs::read_dir(directory.path())?.count(), 0);
    persist(&store, &mut zygote.control, "base", None, Vec::new())?;
    assert_eq!(zygote.fork()?.mailbox.order(Order::Add, 0, 0)?, 42);
    Ok(())
}
