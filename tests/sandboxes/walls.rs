//! What a VM process that was taken over could do to others with what it has.

use std::fs;
use std::path::{Path, PathBuf};

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::PATIENCE;

use crate::world::World;

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
    let disk = view.record.disk.ok_or("no disk")?;
    assert!(!disk.files.frozen.is_empty());
    let top: &Path = Path::new(disk.files.top.as_str());
    assert_eq!(writable(world, view.pid)?, [world.directory.path().join("layers").join(top)]);
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
    world.run(world.engine.snapshot("written")?.durable())?;
    for id in world.fork("written", 2)? {
        check(&world, &id)?;
    }
    check(&world, &first)
}
