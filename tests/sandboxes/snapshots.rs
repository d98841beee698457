//! Branches, and what becomes of them on disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use forkd_engine::project::Project;
use forkd_engine::{
    Allowance, EngineError, EngineEvent, NewSandboxes, Owner, SandboxState, SnapshotStatus, Source,
};
use forkd_proto::causes::with_causes;
use forkd_store::{Digest, Store, Tag};
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::{self, PATIENCE};
use tokio::sync::mpsc;

use crate::world::{World, lives, request};

#[test]
fn a_snapshot_is_made_once_however_many_ask() -> Result<(), Failure> {
    let world = World::new()?;
    let (tag, project): (Tag, Project) = ("once".parse()?, Project::default());
    let made = Arc::new(AtomicU32::new(0));
    let ask = |fails: bool| {
        let (engine, made, tag, project) =
            (world.engine.clone(), Arc::clone(&made), tag.clone(), project.clone());
        let new = tiny::new_snapshot("once", world.directory.path().join("kernel"));
        async move {
            let (maker, new) = (engine.clone(), new.map_err(EngineError::Tag)?);
            let make = async move {
                made.fetch_add(1, Ordering::SeqCst);
                if fails {
                    // Until all have asked: one that asks later is another attempt.
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    return Err(EngineError::Timeout);
                }
                let (steps, _told) = mpsc::channel(16);
                maker.make(new, &steps).await
            };
            engine.once(&tag, &project, make).await
        }
    };
    let all = |fails: bool| world.run(futures_util::future::join_all((0..8).map(|_| ask(fails))));
    let failed = all(true);
    assert!(failed.iter().all(|one| matches!(one.as_ref().map_err(|e| &**e), Err(EngineError::Timeout))));
    assert_eq!(made.swap(0, Ordering::SeqCst), 1, "all are told of one failure");
    for found in all(false) {
        assert_eq!(found?.tag(), tag);
    }
    for found in all(false) {
        found?;
    }
    assert_eq!(made.load(Ordering::SeqCst), 1);
    let other: Project = "other".parse()?;
    let refused = world.run(world.engine.once(&tag, &other, async { Err(EngineError::Timeout) }));
    assert!(matches!(refused.map_err(|error| error.to_string()), Err(text) if text.contains("already")));
    Ok(())
}

#[test]
fn a_branch_can_be_forked_at_once_and_is_on_disk_soon() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    let branch = world.run(sandbox.branch(Some("branch".parse()?)))?;
    world.fork("branch", 3)?;
    let view = world.run(branch.durable())?;
    assert_eq!(view.status, SnapshotStatus::Ready);
    assert_eq!(view.record.parent.as_ref().map(|tag| tag.as_str()), Some("base"));
    assert!(view.record.pause_us.is_some());
    assert_eq!(world.names("snapshots"), ["base", "branch"]);
    assert_eq!(sandbox.view().state, SandboxState::Running);
    assert_eq!(sandbox.view().record.branches, ["branch".parse()?]);
    // Branches get names of their own.
    let second = world.run(sandbox.branch(None))?;
    assert_eq!(second.tag().as_str(), format!("{id}-2"));
    let error = world.run(sandbox.branch(Some("base".parse()?))).unwrap_err();
    assert!(matches!(error, EngineError::NameTaken(_)), "{error}");
    assert_eq!(sandbox.view().record.branches.len(), 2);
    Ok(())
}

#[test]
fn a_branch_that_nobody_waits_for_is_written_by_itself() -> Result<(), Failure> {
    let world = World::new()?;
    let base = world.make("base")?;
    let sandbox = world.engine.sandbox(&world.fork("base", 1)?.remove(0))?;
    let branches = (0..5).map(|_| world.run(sandbox.branch(None))).collect::<Result<Vec<_>, _>>()?;
    let ready = || branches.iter().chain([&base]).all(|one| one.view().status == SnapshotStatus::Ready);
    world.until("all are on disk", ready);
    assert_eq!(world.names("snapshots").len(), 6);
    Ok(())
}

/// What is frozen is hashed when it is new. A later snapshot says the same of it, also when it has changed since, and so does the next
/// daemon. Nobody can write to it but root, so it is not read again, also not to load a snapshot.
#[test]
fn a_layer_is_what_it_was_when_it_was_frozen() -> Result<(), Failure> {
    let mut world = World::with_guest(&ticking::elf())?;
    world.make("warm")?;
    let id = world.fork("warm", 1)?.remove(0);
    let branch = |world: &World, number: u64, tag: &str| {
        let sandbox = world.engine.sandbox(&id)?;
        Words::of(sandbox.view().pid, PATIENCE)?.keep(number, PATIENCE)?;
        let branch = world.run(sandbox.branch(Some(tag.parse()?)))?;
        Ok::<_, Failure>(world.run(branch.durable())?)
    };
    let first = branch(&world, 1, "first")?;
    let layer = first.record.disks[0].last().ok_or("no layer")?.as_str().to_owned();
    let store = Store::new(world.directory.path().join("snapshots"));
    let digest = |tag: &str| -> Result<Digest, Failure> {
        let stored = store.get(&tag.parse()?)?.ok_or("no such snapshot")?;
        let found = stored.disk_layers().find(|(id, _)| id.as_str() == layer);
        Ok(found.ok_or("not a layer of it")?.1.digest)
    };
    let expected = digest("first")?;
    let path = world.directory.path().join("layers").join(&layer);
    // Of what the guest has written, not of the map before it.
    let last = fs::read(&path)?.iter().rposition(|byte| *byte != 0).ok_or("nothing in it")?;
    File::options().write(true).open(&path)?.write_all_at(&[0xff], u64::try_from(last)?)?;
    branch(&world, 2, "second")?;
    assert_eq!(digest("second")?, expected);
    world.restart()?;
    branch(&world, 3, "third")?;
    assert_eq!(digest("third")?, expected);
    let third = world.engine.snapshot("third")?;
    assert!(world.run(third.evict()));
    world.fork("third", 1)?;
    Ok(())
}

/// A branch is written without a look at every byte of its parent. What of the parent is damaged is found by whoever reads it.
#[test]
fn a_branch_of_damaged_memory_is_not_loaded() -> Result<(), Failure> {
    let world = World::new()?;
    let base = world.make("base")?;
    world.run(base.durable())?;
    let sandbox = world.engine.sandbox(&world.fork("base", 1)?.remove(0))?;
    let path = world.directory.path().join("snapshots/base/memory.bin");
    let file = File::options().read(true).write(true).open(path)?;
    let (mut byte, at) = ([0], 5000);
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[!byte[0]], at)?;
    let branch = world.run(async { sandbox.branch(Some("branch".parse()?)).await })?;
    world.run(branch.durable())?;
    assert!(world.run(branch.evict()) && world.run(base.evict()));
    for tag in ["branch", "base"] {
        let refused = world.fork(tag, 1).unwrap_err();
        assert!(with_causes(&refused).contains("is damaged"), "{tag}: {refused}");
    }
    file.write_all_at(&byte, at)?;
    for tag in ["branch", "base"] {
        world.fork(tag, 1)?;
    }
    Ok(())
}

#[test]
fn copies_of_a_running_sandbox_are_made_in_one_call() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let created = world.create(Source::Sandbox(world.engine.sandbox(&id)?), 4)?;
    assert_eq!(created.sandboxes.len(), 4);
    assert!(created.restored <= created.ready);
    let branch = format!("{id}-1");
    assert!(created.sandboxes.iter().all(|view| view.record.snapshot.as_str() == branch));
    assert!(created.sandboxes.iter().all(|view| view.record.generation == 3));
    Ok(())
}

#[test]
fn an_evicted_snapshot_is_loaded_again_when_it_is_needed() -> Result<(), Failure> {
    let world = World::new()?;
    let base = world.make("base")?;
    world.run(base.durable())?;
    let lease = world.run(base.lease())?;
    assert!(!world.run(base.evict()), "evicted while in use");
    let first = lease.process.pid;
    drop(lease);
    assert!(world.run(base.evict()));
    assert!(!world.run(base.evict()), "there is nothing more to give");
    world.until("its process ends", || !lives(first));
    assert!(!base.view().loaded);
    assert_eq!(world.names("zygotes"), [""; 0]);
    world.fork("base", 2)?;
    assert!(base.view().loaded);
    assert_ne!(world.run(base.lease())?.process.pid, first);
    Ok(())
}

#[test]
fn what_is_beyond_the_budget_is_evicted_by_use_and_never_while_needed() -> Result<(), Failure> {
    let mut world = World::new()?;
    for tag in ["one", "two", "three"] {
        world.run(world.make(tag)?.durable())?;
    }
    let trimmed = world.run(world.engine.trim());
    assert_eq!(trimmed.evicted, [], "all of them fit");
    assert!(trimmed.held_bytes > 0);
    // A budget for none: what is not needed goes, what was used last at last.
    let recovered = world.restart_with(1)?;
    assert_eq!(recovered.zygotes.len(), 3, "{recovered:?}");
    let handle = |tag: &str| world.engine.snapshot(tag);
    let mut events = world.engine.events();
    let lease = world.run(handle("one")?.lease())?;
    world.run(handle("three")?.lease())?;
    let held = lease.process.pid;
    let trimmed = world.run(world.engine.trim());
    assert_eq!(trimmed.evicted, ["two".parse()?, "three".parse()?], "{trimmed:?}");
    assert!(lives(held) && handle("one")?.view().loaded, "it was leased");
    assert_eq!(world.names("zygotes"), ["one"]);
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(event.what);
    }
    assert!(told.contains(&EngineEvent::Evicted("two".parse()?)), "{told:?}");

    // What is needed comes back.
    drop(lease);
    world.fork("two", 2)?;
    let lease = world.run(handle("two")?.lease())?;
    assert_eq!(world.run(world.engine.trim()).evicted, ["one".parse()?]);
    drop(lease);
    world.until("its process ends", || !lives(held));
    let sandbox = world.engine.sandbox(&world.fork("one", 1)?.remove(0))?;
    // One that is not on disk is nowhere else.
    world.run(handle("two")?.lease())?;
    let branch = world.run(sandbox.branch(Some("branch".parse()?)))?;
    let evicted = world.run(world.engine.trim()).evicted;
    assert!(branch.view().loaded || branch.view().status == SnapshotStatus::Ready, "{evicted:?}");
    world.run(branch.durable())?;
    world.fork("branch", 1)?;
    Ok(())
}

#[test]
fn a_sandbox_goes_back_to_its_own_branch_and_to_no_other() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let ids = world.fork("base", 2)?;
    let sandbox = world.engine.sandbox(&ids[0])?;
    world.run(sandbox.branch(Some("one".parse()?)))?;
    world.run(sandbox.branch(Some("two".parse()?)))?;
    let before = sandbox.view();
    world.run(sandbox.rollback("one".parse()?))?;
    let after = sandbox.view();
    assert_ne!(after.pid, before.pid);
    world.until("the predecessor ends", || !lives(before.pid));
    assert_eq!((after.id(), after.state), (before.id(), SandboxState::Running));
    assert_eq!(after.record.branches, ["one".parse()?]);
    assert_eq!(world.names("layers").len(), 2, "one top layer each");
    world.run(sandbox.pause())?;
    world.run(sandbox.branch(Some("three".parse()?)))?;
    let other = world.engine.sandbox(&ids[1])?;
    let error = world.run(other.rollback("one".parse()?)).unwrap_err();
    assert!(matches!(error, EngineError::NotItsBranch { .. }), "{error}");
    assert_eq!(other.view().state, SandboxState::Running);
    Ok(())
}

#[test]
fn a_snapshot_that_others_need_is_not_removed() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    let branch = world.run(sandbox.branch(Some("child".parse()?)))?;
    world.run(branch.durable())?;
    let grandchild = world.fork("child", 1)?.remove(0);
    let branch = world.run(world.engine.sandbox(&grandchild)?.branch(Some("grandchild".parse()?)))?;
    world.run(branch.durable())?;
    let error = world.run(world.engine.remove_snapshot("base", false)).unwrap_err();
    assert_eq!(error.to_string(), "snapshot base is needed by child, grandchild");
    let removed = world.run(world.engine.remove_snapshot("base", true))?;
    assert_eq!(removed, ["grandchild".parse()?, "child".parse()?, "base".parse()?]);
    assert_eq!(world.names("snapshots"), [""; 0]);
    assert_eq!(world.names("zygotes"), [""; 0]);
    assert_eq!(sandbox.view().state, SandboxState::Running, "sandboxes go on");
    Ok(())
}

#[test]
fn what_a_branch_keeps_counts_against_its_owner() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(world.make("base")?.durable())?;
    let shape = world.engine.snapshot("base")?.view().record.shape;
    let owner = |memory_bytes| Owner {
        name: "token:a".into(),
        allowance: Allowance { memory_bytes: Some(memory_bytes), ..Allowance::default() },
        project: Default::default(),
        project_allowance: Allowance::default(),
    };
    // Enough for a sandbox, and not for anything beside it.
    let exact = owner(shape.memory_bytes);
    let request = NewSandboxes { owner: Some(exact.clone()), ..request(world.source("base")?, 1) };
    let created = world.run(world.engine.create(request.clone()))?;
    let sandbox = world.engine.sandbox(created.sandboxes[0].id().as_str())?;
    let pid = sandbox.view().pid;
    let own = world.run(world.engine.usage(sandbox.view().id().as_str()))?.memory.private_bytes;
    assert!(own > 0);
    let refused = world.run(sandbox.branch_for(Some("one".parse()?), Some(exact.clone()))).unwrap_err();
    let text = refused.to_string();
    assert!(
        matches!(refused, EngineError::Refused(_)) && text.contains("exceeded for MiB of memory"),
        "{text}"
    );
    assert_eq!(world.names("zygotes"), ["base"], "nothing was made");
    // Nobody asks for whom there is no limit.
    let ample = owner(shape.memory_bytes * 2);
    let branch = world.run(sandbox.branch_for(Some("one".parse()?), Some(ample.clone())))?.snapshot;
    let record = branch.view().record;
    assert_eq!(record.owner.as_deref(), Some("token:a"));
    assert!(record.frozen_bytes > 0 && record.frozen_bytes < shape.memory_bytes, "{record:?}");
    // While the branch is in memory, a second sandbox does not fit; once it is on disk, it makes room.
    world.run(branch.durable())?;
    let lease = world.run(branch.lease())?;
    let second = NewSandboxes { owner: Some(ample.clone()), ..request.clone() };
    let refused = world.run(world.engine.create(second.clone())).unwrap_err();
    assert!(matches!(refused, EngineError::Refused(_)), "{refused}");
    drop(lease);
    world.run(world.engine.create(second))?;
    assert!(!branch.view().loaded, "it is on disk only");
    assert_eq!(sandbox.view().pid, pid);
    Ok(())
}

#[test]
fn a_sandbox_shares_memory_with_its_latest_branch_in_memory() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    let shared_with = || -> Result<_, Failure> {
        let usage = world.run(world.engine.usage(&id))?;
        assert!(usage.memory.shared_bytes > 0);
        Ok(usage.memory_shared_with.map(|tag| tag.to_string()))
    };
    assert_eq!(shared_with()?.as_deref(), Some("base"));
    for tag in ["one", "two"] {
        world.run(sandbox.branch(Some(tag.parse()?)))?;
        assert_eq!(shared_with()?.as_deref(), Some(tag));
    }
    let view = world.engine.snapshot("two")?.view();
    let size = world.run(world.engine.stored_sizes(vec![view]))?.remove(0);
    assert!(size.resident.is_some_and(|memory| memory.shared_bytes > 0), "{size:?}");
    world.run(world.engine.remove_snapshot("two", false))?;
    assert_eq!(shared_with()?.as_deref(), Some("one"));
    Ok(())
}

/// The name of a branch that was removed may be another sandbox's by now.
#[test]
fn a_sandbox_does_not_go_back_to_what_is_not_its_own() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let ids = world.fork("base", 2)?;
    let (one, other) = (world.engine.sandbox(&ids[0])?, world.engine.sandbox(&ids[1])?);
    world.run(one.branch(Some("name".parse()?)))?;
    world.run(world.engine.remove_snapshot("name", false))?;
    world.run(other.branch(Some("name".parse()?)))?;
    let error = world.run(one.rollback("name".parse()?)).unwrap_err();
    assert!(matches!(error, EngineError::NotItsBranch { .. }), "{error}");
    world.run(other.rollback("name".parse()?))?;
    Ok(())
}

/// A record has an end, and a sandbox that is branched for ever does not reach it.
#[test]
fn branches_that_are_gone_are_forgotten_before_they_are_too_many() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    world.run(world.engine.sandbox(&id)?.branch(Some("there".parse()?)))?;
    let path = world.run_path("sandboxes").join(&id).join("record.json");
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let gone = (1..8192).map(|number| format!("{}-{number}", "long-name".repeat(6)));
    record["branches"] = ["there".to_owned()].into_iter().chain(gone).collect();
    std::fs::write(&path, record.to_string())?;
    let recovered = world.restart()?;
    assert_eq!((recovered.sandboxes.len(), recovered.unreadable.len()), (1, 0), "{recovered:?}");
    let sandbox = world.engine.sandbox(&id)?;
    world.run(sandbox.branch(Some("next".parse()?)))?;
    assert_eq!(sandbox.view().record.branches, ["there".parse()?, "next".parse()?]);
    world.run(sandbox.rollback("there".parse()?))?;
    Ok(())
}

/// A name is free again when its snapshot is gone, also for a branch of what was forked from it.
#[test]
fn a_branch_may_have_the_name_of_what_it_comes_from() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    world.run(world.engine.remove_snapshot("base", false))?;
    let branch = world.run(world.engine.sandbox(&id)?.branch(Some("base".parse()?)))?;
    assert_eq!(branch.view().record.parent, None);
    world.fork("base", 1)?;
    assert_eq!(world.run(world.engine.remove_snapshot("base", true))?, ["base".parse()?]);
    Ok(())
}

/// A line of `/proc/PID/status`, in KiB.
fn kib(pid: i32, name: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(line.and_then(|line| line.split_whitespace().next()).ok_or("no such line")?.parse()?)
}

#[test]
fn the_twentieth_branch_of_a_branch_is_no_larger_than_the_first() -> Result<(), Failure> {
    const GENERATIONS: usize = 20;
    let world = World::new()?;
    world.make("warm")?;
    let (mut tag, mut sizes) = ("warm".to_owned(), Vec::new());
    for _ in 0..GENERATIONS {
        let id = world.fork(&tag, 1)?.remove(0);
        let sandbox = world.engine.sandbox(&id)?;
        let branch = world.run(sandbox.branch(None))?;
        tag = branch.tag().to_string();
        let pid = world.run(branch.lease())?.process.pid;
        sizes.push((kib(pid, "VmSize")?, kib(pid, "RssAnon")?));
    }
    // What every generation adds is looked for: a single one may be larger for a reason of its own.
    let usual = |size: fn(&(u64, u64)) -> u64| -> u64 {
        let mut steps: Vec<u64> =
            sizes.windows(2).map(|pair| size(&pair[1]).saturating_sub(size(&pair[0]))).collect();
        steps.sort_unstable();
        steps[steps.len() / 2]
    };
    // Of each thread, the page with glibc's descriptor and its guard stay; its stack is 256 KiB.
    assert!(usual(|size| size.0) <= 64, "{sizes:?}");
    assert!(usual(|size| size.1) <= 24, "{sizes:?}");
    Ok(())
}
