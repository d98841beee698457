//! Chains of snapshots: their history, and every byte of them.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use forkd_engine::project::Project;
use forkd_engine::{EngineError, NewDerived, Owner, PlannedBuild, SnapshotHandle, SnapshotKind, Verified};
use forkd_store::Tag;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::PATIENCE;

use tokio::sync::mpsc;

use crate::world::World;

/// A snapshot of a sandbox of another one. The guest has written a number to its disk, if it is one that does.
fn derive(world: &World, parent: &str, tag: &str, number: Option<u64>) -> Result<SnapshotHandle, Failure> {
    let sandbox = world.engine.sandbox(&world.fork(parent, 1)?.remove(0))?;
    if let Some(number) = number {
        Words::of(sandbox.view().pid, PATIENCE)?.keep(number, PATIENCE)?;
    }
    let branch = world.run(sandbox.branch(Some(tag.parse()?)))?;
    world.run(branch.durable())?;
    Ok(branch)
}

#[test]
fn a_history_has_the_chain_and_the_dependents() -> Result<(), Failure> {
    let world = World::with_guest(&ticking::elf())?;
    world.run(world.make("base")?.durable())?;
    derive(&world, "base", "middle", Some(1))?;
    derive(&world, "base", "sibling", Some(2))?;
    derive(&world, "middle", "head", Some(3))?;
    let history = world.run(world.engine.history(&"middle".parse::<Tag>()?))?;
    let seen: Vec<_> =
        history.iter().map(|entry| (entry.view.record.tag.to_string(), entry.depth, entry.kind)).collect();
    let expected = [
        ("base".to_owned(), 0, SnapshotKind::Full),
        ("middle".to_owned(), 1, SnapshotKind::Diff),
        ("head".to_owned(), 2, SnapshotKind::Diff),
    ];
    assert_eq!(seen, expected);
    assert!(history.iter().all(|entry| entry.own_bytes > 0), "{history:?}");
    let shared: Vec<u64> = history.iter().map(|entry| entry.shared_bytes).collect();
    assert_eq!(shared[0], 0);
    assert!(shared[1] >= history[0].own_bytes && shared[2] > shared[1], "{shared:?}");
    let missing = world.run(world.engine.history(&"none".parse::<Tag>()?));
    assert!(missing.is_err());
    Ok(())
}

fn flip(path: &Path, at: u64) -> Result<(), Failure> {
    let file = File::options().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    Ok(file.write_all_at(&[!byte[0]], at)?)
}

#[test]
fn every_byte_of_a_chain_is_verified() -> Result<(), Failure> {
    let world = World::with_guest(&ticking::elf())?;
    world.run(world.make("base")?.durable())?;
    let head = derive(&world, "base", "head", Some(7))?;
    let verify =
        || -> Result<Verified, Failure> { Ok(world.run(world.engine.verify(&"head".parse::<Tag>()?, ()))?) };
    let intact = verify()?;
    assert_eq!((intact.snapshots, intact.layers, &intact.damage), (2, 1, &None));
    assert!(intact.bytes > 0);
    let layer = head.view().record.disks[0].last().ok_or("no layer")?.as_str().to_owned();
    let layer = format!("layers/{layer}");
    let last = fs::read(world.directory.path().join(&layer))?.iter().rposition(|byte| *byte != 0);
    let last = u64::try_from(last.ok_or("nothing in it")?)?;
    for (name, at) in [
        ("snapshots/base/memory.bin", 5000),
        ("snapshots/base/memory.map", 70),
        ("snapshots/base/state.bin", 100),
        ("snapshots/base/manifest.json", 40),
        ("snapshots/head/memory.map", 70),
        ("snapshots/head/state.bin", 100),
        (layer.as_str(), last),
    ] {
        let path = world.directory.path().join(name);
        flip(&path, at)?;
        let damage = verify()?.damage.ok_or_else(|| format!("{name} is damaged, and nobody has noticed"))?;
        assert_eq!(damage.file.as_deref(), Some(Path::new(name)), "{damage:?}");
        assert!(damage.problem.starts_with(name), "{damage:?}");
        flip(&path, at)?;
    }
    assert_eq!(verify()?, intact);
    Ok(())
}

/// The guest has no agent, so nothing runs in it.
fn derived(world: &World, parent: &str, tag: &str, run: &[&str]) -> Result<SnapshotHandle, EngineError> {
    let new = NewDerived {
        tag: tag.parse()?,
        source: world.engine.snapshot(parent)?,
        env: Default::default(),
        run: run.iter().map(ToString::to_string).collect(),
        warm_up: Vec::new(),
        build_key: None,
    };
    let (steps, _told) = mpsc::channel(16);
    world.run(world.engine.derive(new, None, &steps))
}

#[test]
fn a_derived_snapshot_is_a_diff_and_no_branch_and_leaves_no_sandbox() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.run(world.make("base")?.durable())?;
    let made = derived(&world, "base", "derived", &[])?;
    assert_eq!((world.engine.sandboxes().len(), world.names("sandboxes").len()), (0, 0));
    let record = world.run(made.durable())?.record;
    assert_eq!(record.parent.as_ref().map(|parent| parent.as_str()), Some("base"));
    assert_eq!((record.branched_from, record.pause_us, record.owner), (None, None, None));
    let history = world.run(world.engine.history(&"derived".parse::<Tag>()?))?;
    assert_eq!(
        history.iter().map(|entry| entry.kind).collect::<Vec<_>>(),
        [SnapshotKind::Full, SnapshotKind::Diff]
    );
    assert!(world.run(made.evict()));
    world.fork("derived", 2)?;
    let second = derived(&world, "derived", "second", &[])?;
    world.run(second.durable())?;
    world.restart()?;
    world.fork("second", 1)?;
    Ok(())
}

#[test]
fn a_derivation_that_cannot_be_leaves_nothing() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(world.make("base")?.durable())?;
    assert!(matches!(derived(&world, "base", "base", &[]), Err(EngineError::NameTaken(_))));
    assert!(matches!(derived(&world, "base", "x", &["true"]), Err(EngineError::WrongState(_))));
    assert!(world.engine.snapshot("x").is_err());
    assert_eq!((world.names("sandboxes").len(), world.names("zygotes").len()), (0, 1));
    derived(&world, "base", "x", &[])?;
    Ok(())
}

#[test]
fn a_compacted_snapshot_needs_nobody_and_is_forked_meanwhile() -> Result<(), Failure> {
    let mut world = World::with_guest(&ticking::elf())?;
    world.run(world.make("base")?.durable())?;
    derive(&world, "base", "middle", Some(1))?;
    let head = derive(&world, "middle", "head", Some(2))?;
    let compact = |world: &World, tag: &str| -> Result<(), EngineError> {
        world.run(world.engine.compact(&tag.parse::<Tag>()?, ()))
    };
    let refused = compact(&world, "middle").unwrap_err();
    assert_eq!(refused.to_string(), "snapshot middle is the parent of head");
    let layers = head.view().record.disks;
    let (engine, tag) = (world.engine.clone(), "head".parse::<Tag>()?);
    let compacting = async move { engine.compact(&tag, ()).await };
    let created = world.engine.create(crate::world::request(world.source("head")?, 3));
    let (compacted, created) = world.run(async { tokio::join!(compacting, created) });
    compacted?;
    assert_eq!(created?.sandboxes.len(), 3);
    assert_eq!((head.view().record.parent, &head.view().record.disks), (None, &layers));
    compact(&world, "head")?;
    for tag in ["middle", "base"] {
        world.run(world.engine.remove_snapshot(tag, false))?;
    }
    let verified = world.run(world.engine.verify(&"head".parse::<Tag>()?, ()))?;
    assert_eq!((verified.snapshots, verified.layers, verified.damage), (1, layers[0].len(), None));
    assert!(world.run(head.evict()));
    world.fork("head", 1)?;
    world.restart()?;
    assert_eq!(world.engine.snapshot("head")?.view().record.parent, None);
    derive(&world, "head", "next", Some(3))?;
    assert!(compact(&world, "head").is_err());
    Ok(())
}

/// A branch that is being written as a diff of what its parent was comes to the disk all the same.
#[test]
fn branches_and_compaction_do_not_hurt_each_other() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(world.make("base")?.durable())?;
    derive(&world, "base", "head", None)?;
    let sandbox = world.engine.sandbox(&world.fork("head", 1)?.remove(0))?;
    for round in 0..5 {
        let tag: Tag = format!("branch-{round}").parse()?;
        let (engine, head) = (world.engine.clone(), "head".parse::<Tag>()?);
        let compacting = async move { engine.compact(&head, ()).await };
        let branching = async { sandbox.branch(Some(tag)).await?.durable().await };
        let (_either, branched) = world.run(async { tokio::join!(compacting, branching) });
        branched?;
        world.fork(&format!("branch-{round}"), 1)?;
    }
    Ok(())
}

fn planned(world: &World, parent: &str, tag: &str) -> Result<PlannedBuild, EngineError> {
    let new = NewDerived {
        tag: tag.parse()?,
        source: world.engine.snapshot(parent)?,
        env: Default::default(),
        run: Vec::new(),
        warm_up: Vec::new(),
        build_key: None,
    };
    world.run(world.engine.plan_derived(new, &Project::default()))
}

#[test]
fn a_build_is_found_by_its_key_and_the_key_does_not_travel() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.run(world.make("base")?.durable())?;
    let (steps, _told) = mpsc::channel(16);
    let owner = Owner {
        name: "somebody".into(),
        allowance: Default::default(),
        project: Project::default(),
        project_allowance: Default::default(),
    };
    let build = |world: &World, parent: &str, tag: &str, fresh: bool| {
        let planned = planned(world, parent, tag)?;
        let key = planned.key;
        let built = world.run(world.engine.build(planned, &owner, fresh, &steps))?;
        Ok::<_, Failure>((built.snapshot.tag().to_string(), built.is_new, key))
    };
    let (tag, is_new, key) = build(&world, "base", "one", false)?;
    assert_eq!((tag.as_str(), is_new), ("one", true));
    assert_eq!(build(&world, "base", "two", false)?, ("one".to_owned(), false, key));
    world.run(world.engine.snapshot("one")?.durable())?;
    world.restart()?;
    assert_eq!(build(&world, "base", "two", false)?, ("one".to_owned(), false, key));
    assert_eq!(build(&world, "base", "three", true)?, ("three".to_owned(), true, key));
    // Another parent is another key, and so is another project's.
    let below = build(&world, "one", "four", false)?;
    assert!(below.1 && below.2 != key, "{below:?}");
    assert!(world.engine.find_built(&key, &"other".parse()?).is_none());
    assert_eq!(
        world.engine.find_built(&key, &Project::default()).map(|found| found.tag().to_string()).as_deref(),
        Some("three")
    );
    // What the key is in is no part of what the snapshot is.
    let manifest = fs::read_to_string(world.directory.path().join("snapshots/one/manifest.json"))?;
    let local = fs::read_to_string(world.directory.path().join("snapshots/one/local.json"))?;
    assert!(!manifest.contains(&key.hex()) && local.contains(&key.hex()), "{local}");
    Ok(())
}
