//! Processes that die or hang at the wrong moment.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use forkd_tests::process::signal;
use forkd_tests::scale::count;
use forkd_tests::{TestResult, check};
use rustix::process::Signal;
use serde_json::json;

use crate::world::{World, is_alive};

pub fn a_killed_qemu_is_noticed_and_started_again() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    world.forkd(&["start"])?;
    world.exec(&["sh", "-c", "echo kept >/root/file; sync"])?;
    signal(Signal::KILL, world.pid()?)?;
    while world.status()?["state"] == "running" {
        std::thread::sleep(Duration::from_millis(50));
    }
    let status = world.status()?;
    check!(status["state"] == "crashed", "{status}");
    check!(status.get("pid").is_none(), "a crashed machine has a process: {status}");
    let refused = world.refused(&["exec", "--", "true"])?;
    check!(refused.contains("is crashed; start it with"), "exec says: {refused}");
    world.forkd(&["start"])?;
    check!(world.exec(&["cat", "/root/file"])? == "kept\n", "the disk lost what was synced");
    check!(fs::exists(world.machine("default").join("console.log.1"))?, "the crashed run's console is gone");
    Ok(())
}

/// A process id that was reused is neither taken for the machine nor killed.
pub fn a_stale_pid_file_harms_nobody() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    let mut bystander = Command::new("sleep").arg("600").spawn()?;
    let run = json!({
        "process": { "pid": bystander.id(), "start_time": 1 },
        "accelerator": "tcg",
        "started_at": 1,
        "binaries": { "path": "/nowhere", "device": 1, "inode": 1 },
        "ports": { "ssh": 1, "api": 2 },
        "ready": true,
    });
    fs::write(world.machine("default").join("run.json"), run.to_string())?;
    let state = world.status()?["state"].clone();
    check!(state == "crashed", "the state is {state}");
    world.forkd(&["start"])?;
    check!(world.pid()? != bystander.id(), "the bystander is taken for the machine");
    world.forkd(&["stop"])?;
    check!(is_alive(bystander.id()), "the bystander was killed");
    bystander.kill()?;
    bystander.wait()?;
    Ok(())
}

pub fn a_machine_that_hangs_is_told_from_one_that_runs() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    world.forkd(&["start"])?;
    let pid = world.pid()?;
    signal(Signal::STOP, pid)?;
    let status = world.status()?;
    check!(status["state"] == "unresponsive", "{status}");
    let refused = world.refused(&["start"])?;
    check!(refused.contains("does not answer; end it with"), "start says: {refused}");
    // It may recover by itself.
    signal(Signal::CONT, pid)?;
    check!(world.status()?["state"] == "running", "the machine did not go on");
    signal(Signal::STOP, pid)?;
    let stopped = world.forkd(&["stop", "--force", "--json"])?;
    check!(stopped.contains("forced"), "stop says: {stopped}");
    check!(!is_alive(pid), "QEMU is still there");
    Ok(())
}

/// `start` is killed at every stage; the machine that it left half-started is taken over, not doubled.
pub fn a_killed_start_is_finished_by_the_next() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    for round in 0..count(3, 30) {
        let mut start = world.command(&["start"]).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_millis([20, 300, 2000, 90, 700, 4000][round as usize % 6]));
        start.kill()?;
        start.wait()?;
        world.forkd(&["start"])?;
        let pids = qemu_processes(&world)?;
        check!(pids == [world.pid()?], "round {round}: the machine's processes are {pids:?}");
        world.exec(&["true"])?;
        world.forkd(&["stop"])?;
        let left = qemu_processes(&world)?;
        check!(left.is_empty(), "round {round}: processes {left:?} are left");
    }
    Ok(())
}

/// The processes whose working directory is the machine's: QEMU's is. The connection that ssh keeps open ends with it.
fn qemu_processes(world: &World) -> Result<Vec<u32>, crate::world::Failure> {
    let directory = world.machine("default").canonicalize()?;
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let here = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == directory);
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if here && is_alive(pid) && command.windows(11).any(|window| window == b"qemu-system") {
            pids.push(pid);
        }
    }
    Ok(pids)
}

pub fn a_killed_init_leaves_all_or_nothing() -> TestResult {
    let world = World::new()?;
    for round in 0..count(20, 200) {
        let mut init = world.command(&["init"]).stderr(Stdio::null()).spawn()?;
        std::thread::sleep(Duration::from_millis(u64::from(round * 7 % 150)));
        init.kill()?;
        init.wait()?;
        match world.output(&["status"])?.status.code() {
            Some(0) => drop(world.forkd(&["rm"])?),
            Some(1) => {
                let refused = world.refused(&["status"])?;
                check!(refused.contains("there is no machine"), "round {round}: status says: {refused}");
            }
            other => check!(false, "round {round}: status ended with {other:?}"),
        }
    }
    // Scratch directories of the killed ones are gone with the next machine.
    world.forkd(&["init"])?;
    let files = world.machine_files()?;
    check!(files == ["default"], "left in the machines' directory: {files:?}");
    Ok(())
}
