//! The disk of a sandbox that is branched again and again: it stays shallow, and every branch keeps what was its own.

use std::fs::File;
use std::path::Path;

use forkd_devices::disk::{Layer, LayerStack, LayeredDisk};
use forkd_engine::SnapshotView;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words, place};
use forkd_tests::engine::tiny::PATIENCE;

use crate::world::World;

const BRANCHES: u64 = 300;
/// Deeper ones are merged before they are branched.
const DEEPEST: usize = 64;

fn tag(number: u64) -> String {
    format!("branch-{number}")
}

/// The disk of a branch, as it is in its files.
fn disk(world: &World, view: &SnapshotView) -> Result<LayeredDisk, Failure> {
    let layers = world.directory.path().join("layers");
    let open = |id: &Path| Ok::<_, Failure>(Layer::open(File::open(layers.join(id))?)?);
    let opened = view.record.disks.iter().flatten().map(|id| open(Path::new(id.as_str())));
    let opened = opened.collect::<Result<Vec<_>, _>>()?;
    let bytes = view.record.shape.devices.root_disk().ok_or("no disk")?.bytes;
    let stack = LayerStack::new(bytes, None, opened)?;
    Ok(LayeredDisk::with_empty_top(stack, tempfile::tempfile()?, 0)?)
}

fn number_at(disk: &LayeredDisk, offset: u64) -> Result<u64, Failure> {
    let mut sector = [0; 512];
    disk.read_at(offset, &mut sector)?;
    Ok(u64::from_le_bytes(sector[..8].try_into()?))
}

/// What a fork of a branch finds on its disk.
fn forked_number(world: &World, tag: &str) -> Result<u64, Failure> {
    let id = world.fork(tag, 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    let words = Words::of(sandbox.view().pid, PATIENCE)?;
    words.round(words.ticks()?, PATIENCE)?;
    assert_eq!(words.kept()?, words.read()?);
    let found = words.read()?;
    world.run(sandbox.remove())?;
    Ok(found)
}

#[test]
fn hundreds_of_branches_are_evicted_loaded_and_forked() -> Result<(), Failure> {
    let mut world = World::with_guest(&ticking::elf())?;
    world.make("warm")?;
    let id = world.fork("warm", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    let words = Words::of(sandbox.view().pid, PATIENCE)?;
    for number in 1..=BRANCHES {
        words.keep(number, PATIENCE)?;
        world.run(sandbox.branch(Some(tag(number).parse()?)))?;
    }
    let frozen = || sandbox.view().record.disks[0].files.frozen.len();
    world.until("the sandbox's own disk is shallow", || frozen() <= 3 * 15);
    for number in 1..=BRANCHES {
        let durable = world.run(world.engine.snapshot(&tag(number))?.durable())?;
        let layers = durable.record.disks.concat().len();
        assert!(layers <= DEEPEST, "{layers} layers");
    }

    // Their processes go, and so does the daemon.
    world.restart_with(0)?;
    world.run(world.engine.trim());
    world.restart()?;
    assert!(world.engine.snapshots().iter().all(|view| !view.loaded), "all are on disk only");
    for number in 1..=BRANCHES {
        let view = world.engine.snapshot(&tag(number))?.view();
        let disk = disk(&world, &view)?;
        for written in 1..=number + 1 {
            let expected = if written <= number { written } else { 0 };
            assert_eq!(number_at(&disk, place(written))?, expected, "block {written} of branch {number}");
        }
    }
    for number in 1..=BRANCHES {
        assert_eq!(forked_number(&world, &tag(number))?, number);
    }

    // The sandbox itself has gone on all the time, and goes back.
    let sandbox = world.engine.sandbox(&id)?;
    let words = Words::of(sandbox.view().pid, PATIENCE)?;
    words.keep(BRANCHES + 1, PATIENCE)?;
    world.run(sandbox.rollback(tag(2).parse()?))?;
    let words = Words::of(sandbox.view().pid, PATIENCE)?;
    words.round(words.ticks()?, PATIENCE)?;
    assert_eq!((words.kept()?, words.read()?), (2, 2));
    Ok(())
}
