//! A daemon that dies, and the next one.

use std::fs;

use forkd_engine::{EngineError, SandboxState, SnapshotStatus, Swept};
use forkd_tests::engine::process::Failure;

use crate::world::{World, lives};

#[test]
fn everything_is_found_again() -> Result<(), Failure> {
    let mut world = World::new()?;
    let base = world.make("base")?;
    world.run(base.durable())?;
    let ids = world.fork("base", 5)?;
    let sandbox = world.engine.sandbox(&ids[0])?;
    let branch = world.run(sandbox.branch(Some("branch".parse()?)))?;
    world.run(branch.durable())?;
    world.run(world.engine.sandbox(&ids[1])?.pause())?;
    let mut before: Vec<_> =
        world.engine.sandboxes().into_iter().map(|view| (view.record, view.state, view.pid)).collect();

    let recovered = world.restart()?;
    assert_eq!((recovered.sandboxes.len(), recovered.removed), (5, 0), "{recovered:?}");
    assert_eq!(recovered.zygotes, ["base".parse()?, "branch".parse()?]);
    let mut after: Vec<_> =
        world.engine.sandboxes().into_iter().map(|view| (view.record, view.state, view.pid)).collect();
    before.sort_by(|one, other| one.0.id.cmp(&other.0.id));
    after.sort_by(|one, other| one.0.id.cmp(&other.0.id));
    assert_eq!(before, after);
    assert_eq!(world.engine.snapshot("branch")?.view().status, SnapshotStatus::Ready);

    // And all of it goes on.
    assert_eq!(world.engine.sandbox(&ids[1])?.view().state, SandboxState::Paused);
    world.run(world.engine.sandbox(&ids[1])?.resume())?;
    world.run(world.engine.sandbox(&ids[0])?.rollback("branch".parse()?))?;
    world.fork("branch", 2)?;
    for id in &ids {
        world.run(world.engine.sandbox(id)?.remove())?;
    }
    assert!(!before.iter().any(|(_, _, pid)| lives(*pid)));
    Ok(())
}

#[test]
fn what_nobody_was_promised_is_removed() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let view = world.engine.sandbox(&id)?.view();
    // As if the daemon had died before it could tell anybody.
    let record = world.run_path("sandboxes").join(&id).join("record.json");
    assert!(fs::read_to_string(&record)?.contains("\"promised\":false"));
    for promise in world.names("promised") {
        fs::remove_file(world.run_path("promised").join(promise))?;
    }
    fs::create_dir(world.run_path("sandboxes/ihalf"))?;
    fs::create_dir(world.run_path("zygotes/half"))?;
    fs::write(world.directory.path().join("layers/lnobody"), b"")?;
    let recovered = world.restart()?;
    assert_eq!((recovered.sandboxes.len(), recovered.removed), (0, 5), "{recovered:?}");
    assert!(matches!(world.engine.sandbox(&id), Err(EngineError::NoSandbox(_))));
    world.until("its process ends", || !lives(view.pid));
    assert_eq!(world.names("sandboxes"), [""; 0]);
    assert_eq!(world.names("zygotes"), ["base"]);
    assert_eq!(world.names("layers"), [""; 0]);
    Ok(())
}

/// One file promises all that a request has made. The next daemon promises each by itself.
#[test]
fn the_promise_of_a_group_is_that_of_each() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.make("base")?;
    let ids = world.fork("base", 3)?;
    world.fork("base", 2)?;
    assert_eq!(world.names("promised").len(), 2);
    world.run(world.engine.sandbox(&ids[0])?.remove())?;
    assert_eq!(world.names("promised").len(), 2, "two others are of its group");
    let recovered = world.restart()?;
    assert_eq!((recovered.sandboxes.len(), recovered.removed), (4, 0), "{recovered:?}");
    assert_eq!(world.names("promised"), [""; 0]);
    for id in world.names("sandboxes") {
        let record = world.run_path("sandboxes").join(id).join("record.json");
        assert!(fs::read_to_string(&record)?.contains("\"promised\":true"));
    }
    let recovered = world.restart()?;
    assert_eq!((recovered.sandboxes.len(), recovered.removed), (4, 0), "{recovered:?}");
    for id in world.fork("base", 2)? {
        world.run(world.engine.sandbox(&id)?.remove())?;
    }
    assert_eq!(world.names("promised"), [""; 0], "the last one takes it along");
    Ok(())
}

#[test]
fn what_could_not_be_removed_is_swept() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    world.fork("base", 1)?;
    // Long ago, and just now.
    for (path, is_old) in
        [("sandboxes/iold", true), ("zygotes/old", true), ("sandboxes/inew", false), ("zygotes/new", false)]
    {
        let path = world.run_path(path);
        fs::create_dir(&path)?;
        if is_old {
            fs::File::open(&path)?.set_modified(long_ago())?;
        }
    }
    // Those that are somebody's are as old.
    for place in ["sandboxes", "zygotes"] {
        for name in world.names(place).iter().filter(|name| !name.ends_with("new")) {
            fs::File::open(world.run_path(place).join(name))?.set_modified(long_ago())?;
        }
    }
    let swept = world.run(world.engine.sweep())?;
    assert_eq!((swept.sandboxes, swept.zygotes, swept.removed), (vec![], vec![], 2));
    assert_eq!(world.names("zygotes"), ["base", "new"]);
    assert_eq!(world.names("sandboxes").len(), 2);
    fs::remove_dir_all(world.run_path("sandboxes/inew"))?;
    fs::remove_dir_all(world.run_path("zygotes/new"))?;
    Ok(())
}

#[test]
fn a_branch_that_was_not_written_is_written_by_the_next_daemon() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    world.run(world.engine.sandbox(&id)?.branch(Some("branch".parse()?)))?;
    let recovered = world.restart()?;
    assert_eq!(recovered.zygotes, ["base".parse()?, "branch".parse()?]);
    // Neither was on disk, and either may be first.
    for tag in ["base", "branch"] {
        world.run(world.engine.snapshot(tag)?.durable())?;
    }
    assert_eq!(world.names("snapshots"), ["base", "branch"]);
    Ok(())
}

#[test]
fn sandboxes_that_ended_while_nobody_looked_are_gone() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.make("base")?;
    let ids = world.fork("base", 2)?;
    let pid = world.engine.sandbox(&ids[0])?.view().pid;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).ok_or("no pid")?,
        rustix::process::Signal::KILL,
    )?;
    let recovered = world.restart()?;
    assert_eq!(recovered.sandboxes.len(), 1, "{recovered:?}");
    assert_eq!(world.engine.sandboxes().len(), 1);
    assert_eq!(world.names("layers").len(), 1);
    Ok(())
}

#[test]
fn a_process_that_says_nothing_does_not_keep_the_others_from_being_found() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.make("base")?;
    let ids = world.fork("base", 3)?;
    let stuck = rustix::process::Pid::from_raw(world.engine.sandbox(&ids[1])?.view().pid).ok_or("no pid")?;
    rustix::process::kill_process(stuck, rustix::process::Signal::STOP)?;
    let recovered = world.restart()?;
    assert_eq!(
        (recovered.sandboxes.len(), recovered.mute.len(), recovered.removed),
        (2, 1, 0),
        "{recovered:?}"
    );
    assert_eq!(world.names("layers").len(), 3, "its disk is left alone");
    let sweep = || {
        fs::File::open(world.run_path("sandboxes").join(&ids[1]))?.set_modified(long_ago())?;
        Ok::<_, Failure>(world.run(world.engine.sweep())?)
    };
    assert_eq!(sweep()?, Swept::default(), "it is as mute as before");
    // Somebody has mended it.
    rustix::process::kill_process(stuck, rustix::process::Signal::CONT)?;
    assert_eq!(sweep()?.sandboxes, [ids[1].parse()?]);
    world.run(world.engine.sandbox(&ids[1])?.pause())?;
    let recovered = world.restart()?;
    assert_eq!((recovered.sandboxes.len(), recovered.mute.len()), (3, 0), "{recovered:?}");
    Ok(())
}

/// A record that is damaged while a daemon runs: its sandbox runs on, and the sweep removes nothing.
#[test]
fn nothing_is_swept_while_a_record_cannot_be_read() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let layer = world.directory.path().join("layers/lnobody");
    fs::write(&layer, b"")?;
    fs::File::open(&layer)?.set_modified(long_ago())?;
    let record = world.run_path("sandboxes").join(&id).join("record.json");
    let text = fs::read(&record)?;
    fs::write(&record, &text[..text.len() / 2])?;
    let swept = world.run(world.engine.sweep())?;
    assert_eq!((swept.removed, swept.unreadable.len()), (0, 1), "{swept:?}");
    assert_eq!(swept.unreadable[0].path, record);
    assert_eq!(world.engine.unreadable(), swept.unreadable);
    assert!(layer.exists() && lives(world.engine.sandbox(&id)?.view().pid));
    // Its owner writes it again.
    world.run(world.engine.sandbox(&id)?.pause())?;
    world.run(world.engine.sandbox(&id)?.branch(None))?;
    let swept = world.run(world.engine.sweep())?;
    assert_eq!((swept.removed, swept.unreadable.len()), (1, 0), "{swept:?}");
    assert!(!layer.exists());
    Ok(())
}

/// A manifest that cannot be read when the daemon starts, and can later.
#[test]
fn a_snapshot_is_there_again_when_its_manifest_can_be_read() -> Result<(), Failure> {
    let mut world = World::new()?;
    let base = world.make("base")?;
    world.run(base.durable())?;
    assert!(world.run(base.evict()));
    let manifest = world.directory.path().join("snapshots/base/manifest.json");
    let text = fs::read(&manifest)?;
    fs::write(&manifest, &text[1..])?;
    let recovered = world.restart()?;
    assert_eq!((recovered.stored.len(), recovered.unreadable.len()), (0, 1), "{recovered:?}");
    assert!(world.fork("base", 1).is_err());
    fs::write(&manifest, &text)?;
    let swept = world.run(world.engine.sweep())?;
    assert_eq!((swept.stored.as_slice(), swept.unreadable.len()), (&["base".parse()?][..], 0));
    assert_eq!(world.run(world.engine.sweep())?, Swept::default());
    world.fork("base", 1)?;
    Ok(())
}

/// A guest that writes nothing for a while before it is frozen keeps its disk.
#[test]
fn the_disk_of_a_snapshot_that_is_being_made_is_not_swept() -> Result<(), Failure> {
    let world = World::new()?;
    // Nobody listens: it waits before it freezes.
    let (steps, mut told) = tokio::sync::mpsc::channel(1);
    let new = forkd_tests::engine::tiny::new_snapshot("base", world.directory.path().join("kernel"))?;
    let engine = world.engine.clone();
    let made = world.run(async {
        let making = tokio::spawn(async move { engine.make(new, &steps).await });
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        for name in world.names("layers") {
            fs::File::open(world.directory.path().join("layers").join(name))?.set_modified(long_ago())?;
        }
        let swept = world.engine.sweep().await?;
        assert_eq!((swept.removed, world.names("layers").len()), (0, 1), "{swept:?}");
        while told.recv().await.is_some() {}
        Ok::<_, Failure>(making.await?)
    })?;
    made?;
    world.fork("base", 1)?;
    Ok(())
}

fn long_ago() -> std::time::SystemTime {
    std::time::SystemTime::now() - std::time::Duration::from_secs(3600)
}
