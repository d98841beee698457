//! The pages that children use first: learned once, from a hidden child, and kept with the snapshot.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use forkd_proto::control::Prefault;
use forkd_proto::page_runs::PageRuns;
use forkd_store::Store;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::{ticking, tiny};
use forkd_tests::measure::private_kib;
use rustix::process::Signal;

use crate::world::World;

const ON: [&str; 2] = ["--prefault", "true"];
/// Longer than a daemon waits for quiet before it learns.
const LONG_ENOUGH: Duration = Duration::from_millis(2500);

fn file(world: &World) -> PathBuf {
    world.root().join("snapshots/base/prefault.json")
}

fn list(world: &World) -> Option<Prefault> {
    let store = Store::new(world.root().join("snapshots"));
    store.prefault(&"base".parse().ok()?).ok()??.list
}

/// Waits until there is a list that can be used, and looks at what can be seen meanwhile.
fn until_learned(world: &World) -> Result<(), Failure> {
    world.until("a list is learned", |world| {
        assert_eq!(world.sandboxes("")?.len(), 0, "the child is listed");
        Ok(list(world).is_some())
    })?;
    until_nothing_is_left(world)
}

fn until_nothing_is_left(world: &World) -> Result<(), Failure> {
    world.until("nothing is left of the child", |world| {
        let names = ["sandboxes", "layers"].map(|below| tiny::names(&world.root(), below));
        Ok(names.concat().is_empty() && tiny::vms(&world.root()).is_empty())
    })
}

/// What a new child has of its own, and whether it works.
fn private_of_a_child(world: &World) -> Result<u64, Failure> {
    let sandbox = world.fork("base", 1)?.remove(0);
    let private = private_kib(sandbox.pid.ok_or("no process")?)?;
    assert_eq!(world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?.status, 204);
    world.until("its files are gone", |world| {
        Ok(!tiny::names(&world.root(), "sandboxes").contains(&sandbox.id))
    })?;
    Ok(private)
}

#[test]
fn a_list_is_learned_once() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&ON)?;
    until_learned(&world)?;
    let written = || -> Result<_, Failure> { Ok(fs::metadata(file(&world))?.modified()?) };
    let first = written()?;
    private_of_a_child(&world)?;
    let snapshot = world.snapshot("base")?;
    assert!(snapshot.loaded, "{snapshot:?}");

    // The next daemon finds it, whether the zygote is there or not.
    for signal in [Signal::KILL, Signal::TERM] {
        world.end(signal)?;
        world.start(&[&ON[..], &["--zygote-memory", "0"]].concat())?;
        private_of_a_child(&world)?;
        let begun = Instant::now();
        while begun.elapsed() < LONG_ENOUGH {
            assert!(tiny::names(&world.root(), "sandboxes").is_empty(), "it is learned again");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(fs::metadata(file(&world))?.modified()?, first);
    }

    // One that is damaged is learned again.
    world.end(Signal::TERM)?;
    fs::write(file(&world), "no list")?;
    world.start(&ON)?;
    private_of_a_child(&world)?;
    until_learned(&world)?;
    assert_eq!(world.ask("DELETE /v1/snapshots/base")?.status, 200);
    assert_eq!(tiny::names(&world.root(), "snapshots"), [""; 0]);
    Ok(())
}

#[test]
fn what_a_child_writes_is_in_it() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_guest_and_agents(&ticking::elf(), &ON)?;
    let learned = |world: &World, address: u64| {
        let written = list(world).unwrap_or_default().written;
        assert!(written.pages() < 64, "{written:?}");
        written.runs().any(|run| run.contains(&(address / 4096)))
    };
    until_learned(&world)?;
    // The agent is no part of the guest, and may be ready before the guest has run at all on a host that is busy.
    for _ in 0..20 {
        if learned(&world, ticking::WORDS) {
            break;
        }
        world.end(Signal::TERM)?;
        fs::remove_file(file(&world))?;
        world.start(&ON)?;
        until_learned(&world)?;
    }
    assert!(learned(&world, ticking::WORDS));
    assert!(!learned(&world, ticking::WORDS - 4096), "code is not written");
    let child = world.fork("base", 1)?.remove(0);
    ticking::Words::of(child.pid.ok_or("no process")?, tiny::PATIENCE)?.keep(77, tiny::PATIENCE)
}

#[test]
fn what_is_kept_is_used_unless_it_is_turned_off() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    let usual = private_of_a_child(&world)?;
    std::thread::sleep(LONG_ENOUGH);
    assert!(!file(&world).exists(), "nobody has asked for it");

    // Memory that the guest does not use, 8 MiB of it.
    let store = Store::new(world.root().join("snapshots"));
    let tag = "base".parse()?;
    let digest = store.prefault(&tag)?.ok_or("no snapshot")?.digest;
    let written = PageRuns::first_of(std::iter::once((32 << 20) / 4096..(40 << 20) / 4096));
    store.keep_prefault(&tag, &digest, &Prefault { written, ..Prefault::default() })?;
    assert!(private_of_a_child(&world)? < usual + 4096);
    // Told to a zygote that is there, and to one that is loaded for it.
    let is_used = |world: &World| Ok(private_of_a_child(world)? > usual + 7000);
    let is_not_used = |world: &World| Ok(!is_used(world)?);
    for options in [&[][..], &["--zygote-memory", "0"]] {
        world.end(Signal::TERM)?;
        world.start(&[&ON[..], options].concat())?;
        world.until("children have the pages", is_used)?;
        world.end(Signal::TERM)?;
        world.start(&["--prefault", "off"])?;
        world.until("children have no more than before", is_not_used)?;
    }
    assert!(file(&world).exists());
    Ok(())
}

#[test]
#[cfg(debug_assertions)]
fn a_daemon_that_dies_meanwhile_leaves_nothing() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    for place in ["create.forked", "prefault.ready", "prefault.kept"] {
        world.end(Signal::TERM)?;
        world.launch(&ON, &[("FORKD_FAULT", place)])?;
        world.ended_itself()?;
        let is_kept = place == "prefault.kept";
        assert_eq!(
            (list(&world).is_some(), tiny::vms(&world.root()).is_empty()),
            (is_kept, is_kept),
            "{place}"
        );
        world.start(&[])?;
        until_nothing_is_left(&world)?;
    }
    Ok(())
}

#[test]
fn a_snapshot_that_is_removed_meanwhile_is_gone() -> Result<(), Failure> {
    // Before there is a child, and about when it is forked.
    for after in [0, 1000, 1015] {
        let (world, _agents) = World::with_agents(&ON)?;
        std::thread::sleep(Duration::from_millis(after));
        assert_eq!(world.ask("DELETE /v1/snapshots/base")?.status, 200);
        until_nothing_is_left(&world)?;
        std::thread::sleep(LONG_ENOUGH);
        until_nothing_is_left(&world)?;
        assert_eq!(tiny::names(&world.root(), "snapshots"), [""; 0]);
    }
    Ok(())
}

#[test]
fn a_full_host_is_not_asked_for_more() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[&ON[..], &["--max-memory", "32M"]].concat())?;
    std::thread::sleep(LONG_ENOUGH);
    assert!(!file(&world).exists());
    until_nothing_is_left(&world)
}
