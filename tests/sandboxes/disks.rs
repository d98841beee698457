//! Sandboxes with two disks, of which the guest writes to the second.

use forkd_engine::SnapshotView;
use forkd_engine::record::SandboxRecord;
use forkd_proto::control::{Disk, MAX_DISKS};
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::PATIENCE;

use super::world::World;

/// Larger than the first.
const SECOND: Disk =
    Disk { bytes: 32 << 20, limit_bytes: 32 << 20, base: false, layers: 0, read_only: false };

fn world() -> Result<World, Failure> {
    let world = World::with_guest(&ticking::elf_on(1))?;
    world.make_with("base", |shape| shape.devices.disks.push(SECOND))?;
    Ok(world)
}

/// How many frozen layers each disk of a snapshot has.
fn depths(view: &SnapshotView) -> Vec<usize> {
    view.record.disks.iter().map(Vec::len).collect()
}

/// What a guest has in its memory, which must be what it reads from its disk.
fn number(pid: i32) -> Result<u64, Failure> {
    let words = Words::of(pid, PATIENCE)?;
    words.round(words.ticks()?, PATIENCE)?;
    assert_eq!(words.kept()?, words.read()?);
    words.kept()
}

/// The same of a fork.
fn number_in(world: &World, tag: &str) -> Result<u64, Failure> {
    let id = world.fork(tag, 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    let found = number(sandbox.view().pid)?;
    world.run(sandbox.remove())?;
    Ok(found)
}

#[test]
fn two_disks_are_branched_rolled_back_evicted_and_loaded() -> Result<(), Failure> {
    let mut world = world()?;
    assert_eq!(depths(&world.engine.snapshot("base")?.view()), [0, 0]);
    let id = world.fork("base", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    assert_eq!(world.names("layers").len(), 2);
    Words::of(sandbox.view().pid, PATIENCE)?.keep(1, PATIENCE)?;
    assert!(world.run(world.engine.usage(&id))?.disk_bytes > 0);
    let one = world.run(sandbox.branch(Some("one".parse()?)))?;
    assert_eq!(depths(&one.view()), [0, 1]);
    assert_eq!(world.names("layers").len(), 3, "an empty layer is not kept");
    Words::of(sandbox.view().pid, PATIENCE)?.keep(2, PATIENCE)?;
    let two = world.run(sandbox.branch(Some("two".parse()?)))?;
    assert_eq!(depths(&two.view()), [0, 2]);

    world.run(sandbox.rollback("one".parse()?))?;
    assert_eq!(number(sandbox.view().pid)?, 1);
    Words::of(sandbox.view().pid, PATIENCE)?.keep(3, PATIENCE)?;
    assert_eq!((number_in(&world, "one")?, number_in(&world, "two")?), (1, 2));
    for tag in ["one", "two"] {
        world.run(world.engine.snapshot(tag)?.durable())?;
    }

    // The daemon goes, and then the processes of snapshots.
    let before: SandboxRecord = sandbox.view().record;
    let recovered = world.restart_with(0)?;
    assert_eq!(recovered.unreadable, []);
    let sandbox = world.engine.sandbox(&id)?;
    assert_eq!(sandbox.view().record, before);
    assert_eq!(number(sandbox.view().pid)?, 3);
    world.run(world.engine.trim());
    world.restart()?;
    assert!(world.engine.snapshots().iter().all(|view| !view.loaded), "all are on disk only");
    assert_eq!((number_in(&world, "one")?, number_in(&world, "two")?), (1, 2));
    assert_eq!(depths(&world.engine.snapshot("two")?.view()), [0, 2]);

    world.run(world.engine.sandbox(&id)?.remove())?;
    for tag in ["two", "one", "base"] {
        world.run(world.engine.remove_snapshot(tag, true))?;
    }
    // Layers that were below others go with the next sweep.
    world.restart()?;
    world.assert_empty();
    Ok(())
}

/// Each disk gets half of the layers that a single one may have.
#[test]
fn layers_of_the_second_disk_are_merged() -> Result<(), Failure> {
    const BRANCHES: u64 = 20;
    let world = world()?;
    let id = world.fork("base", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    let words = Words::of(sandbox.view().pid, PATIENCE)?;
    for number in 1..=BRANCHES {
        words.keep(number, PATIENCE)?;
        world.run(sandbox.branch(Some(format!("branch-{number}").parse()?)))?;
    }
    let frozen = || {
        let disks = sandbox.view().record.disks;
        disks.iter().map(|disk| disk.files.frozen.len()).collect::<Vec<_>>()
    };
    world.until("the second disk is shallow", || frozen() == [0, 6]);
    words.round(words.ticks()?, PATIENCE)?;
    assert_eq!(words.read()?, BRANCHES);
    for number in [1, 8, 9, 16, BRANCHES] {
        assert_eq!(number_in(&world, &format!("branch-{number}"))?, number);
    }
    Ok(())
}

#[test]
fn a_snapshot_with_too_many_disks_is_refused() -> Result<(), Failure> {
    let world = world()?;
    let disks = vec![SECOND; MAX_DISKS + 1];
    let refused = world.make_with("many", |shape| shape.devices.disks = disks).unwrap_err();
    let error = forkd_proto::causes::with_causes(&refused);
    assert!(error.contains("5 disks, expected at most 4"), "{error}");
    assert_eq!(world.names("zygotes"), ["base"]);
    assert_eq!(world.names("layers"), [""; 0]);
    Ok(())
}
