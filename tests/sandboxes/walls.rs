//! What a VM process that was taken over could do to others with what it has.

use std::fs;
use std::path::{Path, PathBuf};

use forkd_engine::EngineError;
use forkd_engine::ProcessError;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::PATIENCE;

use crate::world::{World, lives};

/// The layers that a process has open for writing.
fn writable(world: &World, pid: i32) -> Result<Vec<PathBuf>, Failure> {
    let layers = world.directory.path().join("layers");
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let entry = entry?;
        // One may have been closed meanwhile.
        let Ok(path) = fs::read_link(entry.path()) else { continue };
        if path.starts_with(&layers) && is_for_writing(pid, &entry.file_name().to_string_lossy())? {
            found.push(path);
        }
    }
    Ok(found)
}

fn is_for_writing(pid: i32, descriptor: &str) -> Result<bool, Failure> {
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{descriptor}"))?;
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).ok_or("no flags")?;
    let access = u32::from_str_radix(flags.trim(), 8)? & rustix::fs::OFlags::RWMODE.bits();
    Ok(access != rustix::fs::OFlags::RDONLY.bits())
}

/// A sandbox can write to its own top layer and to no other.
fn check(world: &World, id: &str) -> Result<(), Failure> {
    let view = world.engine.sandbox(id)?.view();
    let disk = view.record.disks.first().ok_or("no disk")?;
    assert!(!disk.files.frozen.is_empty());
    let top: &Path = Path::new(disk.files.top.as_str());
    assert_eq!(writable(world, view.pid)?, [world.directory.path().join("layers").join(top)]);
    Ok(())
}

/// Who would believe it would end this test's own process.
#[test]
fn a_process_that_names_another_as_its_child_is_not_believed() -> Result<(), Failure> {
    let is_refused = |error: EngineError| {
        let refused = matches!(error, EngineError::Process(ProcessError::Impostor { .. }));
        assert!(refused, "{error:?}");
    };
    let forking = World::with_program("liar-vmm", b"fork")?;
    forking.make("base")?;
    is_refused(forking.fork("base", 1).unwrap_err());
    assert_eq!(forking.names("sandboxes"), [""; 0]);
    let branching = World::with_program("liar-vmm", b"branch")?;
    branching.make("base")?;
    let id = branching.fork("base", 1)?.remove(0);
    let sandbox = branching.engine.sandbox(&id)?;
    is_refused(branching.run(sandbox.branch(None)).map(drop).unwrap_err());
    branching.run(sandbox.remove())?;
    assert_eq!(branching.names("sandboxes"), [""; 0]);
    Ok(())
}

/// A process that says it has given a layer up and has not could change what its branches read of their disks.
#[test]
fn a_process_that_keeps_a_frozen_layer_is_ended() -> Result<(), Failure> {
    let kept = "the VM process still has disk layer ";
    for lie in ["keep", "keep-empty"] {
        let world = World::with_program("liar-vmm", lie.as_bytes())?;
        world.make("base")?;
        let id = world.fork("base", 1)?.remove(0);
        let sandbox = world.engine.sandbox(&id)?;
        let error = world.run(sandbox.branch(Some("branch".parse()?))).map(drop).unwrap_err();
        assert!(matches!(&error, EngineError::EndedMeanwhile(reason) if reason.contains(kept)), "{error:?}");
        let view = sandbox.view();
        assert_eq!(view.end.map(|end| end.detail.starts_with(kept)), Some(true), "{lie}");
        world.until("its process has ended", || !lives(view.pid));
        assert!(world.engine.snapshot("branch").is_err(), "{lie}: the branch is promised");
        assert_eq!(world.names("zygotes"), ["base"]);
    }
    let booting = World::with_program("liar-vmm", b"keep-boot")?;
    let error = booting.make("base").map(drop).unwrap_err();
    assert!(matches!(error, EngineError::LayerKept(_)), "{error:?}");
    booting.until("nothing is left", || booting.names("zygotes").is_empty());
    booting.assert_empty();
    // What ends them is that, and nothing else about such processes.
    let honest = World::with_program("liar-vmm", b"give")?;
    honest.make("base")?;
    let id = honest.fork("base", 1)?.remove(0);
    honest.run(honest.engine.sandbox(&id)?.branch(None))?;
    Ok(())
}

#[test]
fn frozen_layers_cannot_be_written() -> Result<(), Failure> {
    let world = World::with_guest(&ticking::elf())?;
    world.make("empty")?;
    let first = world.fork("empty", 1)?.remove(0);
    let source = world.engine.sandbox(&first)?;
    Words::of(source.view().pid, PATIENCE)?.keep(7, PATIENCE)?;
    world.run(source.branch(Some("written".parse()?)))?;
    // As early as can be, and when it is on disk.
    for id in world.fork("written", 2)? {
        check(&world, &id)?;
    }
    check(&world, &first)?;
    world.run(world.engine.snapshot("written")?.durable())?;
    for id in world.fork("written", 1)? {
        check(&world, &id)?;
    }
    Ok(())
}

/// The most bytes that a file of a process may have, as the kernel keeps it.
fn file_limit(pid: i32) -> Result<u64, Failure> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file size")).ok_or("no line")?;
    Ok(line.split_whitespace().nth(1).ok_or("no limit")?.parse().map_err(|_| format!("no limit: {line}"))?)
}

/// The quota of a disk is kept by the process that writes it. One that does not keep it any more is stopped by the kernel: it has
/// one file to write to, and that is not larger than the disk.
#[test]
fn no_process_makes_files_larger_than_its_disk() -> Result<(), Failure> {
    let mut world = World::new()?;
    let base = world.make("base")?;
    world.run(base.durable())?;
    let most = base.view().record.shape.largest_file();
    let check = |world: &World| -> Result<(), Failure> {
        let id = world.fork("base", 1)?.remove(0);
        let sandbox = world.engine.sandbox(&id)?;
        assert_eq!(file_limit(sandbox.view().pid)?, most);
        let branch = world.run(sandbox.branch(None))?;
        let id = world.fork(branch.tag().as_str(), 1)?.remove(0);
        assert_eq!(file_limit(world.engine.sandbox(&id)?.view().pid)?, most);
        Ok(())
    };
    check(&world)?;
    // Nothing is held in memory: it is loaded from disk.
    world.restart_with(0)?;
    world.run(async {
        while world.engine.snapshot("base")?.view().loaded {
            world.engine.trim().await;
        }
        Ok::<_, Failure>(())
    })?;
    check(&world)
}
