//! VM processes that hang: no request waits for them longer than its deadline.

use std::time::{Duration, Instant};

use forkd_engine::{EndReason, EngineError, SandboxHandle, SandboxState};
use forkd_tests::engine::process::Failure;
use forkd_tests::measure::raise_descriptor_limit;
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{World, lives, request};

/// Nothing takes longer that ends a sandbox.
const SOON: Duration = Duration::from_secs(5);

fn signal(pid: i32, signal: Signal) -> Result<(), Failure> {
    Ok(kill_process(Pid::from_raw(pid).ok_or("no process")?, signal)?)
}

/// A sandbox whose process stands still, and that has been asked for something it never answers.
fn stuck(world: &World, ttl: Option<Duration>) -> Result<SandboxHandle, Failure> {
    let wanted = forkd_engine::NewSandboxes { ttl, ..request(world.source("warm")?, 1) };
    let created = world.run(world.engine.create(wanted))?;
    let sandbox = world.engine.sandbox(created.sandboxes[0].id().as_str())?;
    signal(sandbox.view().pid, Signal::STOP)?;
    let asked = sandbox.clone();
    world.spawn(async move { asked.branch(None).await.map(drop) });
    Ok(sandbox)
}

#[test]
fn a_process_that_stands_still_is_removed() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("warm")?;
    let sandbox = stuck(&world, None)?;
    let pid = sandbox.view().pid;
    let begun = Instant::now();
    let paused = world.run(sandbox.pause());
    assert!(matches!(paused, Err(EngineError::Timeout)), "{paused:?}");
    assert!(begun.elapsed() < SOON + SOON / 5, "{:?}", begun.elapsed());
    let begun = Instant::now();
    world.run(sandbox.remove())?;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(!lives(pid));
    assert_eq!(world.names("sandboxes"), [""; 0]);
    assert_eq!(world.names("layers"), [""; 0]);
    assert!(matches!(world.run(sandbox.remove()), Err(EngineError::Removed)));
    Ok(())
}

#[test]
fn a_process_that_stands_still_ends_when_its_time_is_over() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("warm")?;
    let begun = Instant::now();
    let sandbox = stuck(&world, Some(Duration::from_secs(1)))?;
    let pid = sandbox.view().pid;
    world.until("it has ended", || sandbox.view().state == SandboxState::Ended);
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    world.until("its process is gone", || !lives(pid));
    let end = sandbox.view().end.ok_or("no reason")?;
    assert!(matches!(end.reason, EndReason::Expired | EndReason::Killed), "{end:?}");
    Ok(())
}

/// Its control socket is full, too: it holds fewer forks.
#[test]
fn a_zygote_that_stands_still_is_removed_with_all_that_wait_for_it() -> Result<(), Failure> {
    const FORKS: u32 = 240;
    raise_descriptor_limit();
    let world = World::new()?;
    let zygote = world.run(world.make("warm")?.lease())?.process.pid;
    signal(zygote, Signal::STOP)?;
    let (engine, wanted) = (world.engine.clone(), request(world.source("warm")?, FORKS));
    let (told, answer) = std::sync::mpsc::channel();
    world.spawn(async move { told.send(engine.create(wanted).await) });
    world.until("all wait for the zygote", || world.names("sandboxes").len() == FORKS as usize);
    std::thread::sleep(Duration::from_millis(200));
    let begun = Instant::now();
    world.run(world.engine.remove_snapshot("warm", false))?;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert!(!lives(zygote));
    let created = answer.recv_timeout(SOON)?;
    assert!(matches!(created, Err(EngineError::Call(_))), "{created:?}");
    assert_eq!(world.names("sandboxes"), [""; 0]);
    assert_eq!(world.names("layers"), [""; 0]);
    Ok(())
}

#[test]
fn many_that_stand_still_are_left_alone_by_the_next_daemon() -> Result<(), Failure> {
    const MANY: u32 = 200;
    let mut world = World::new()?;
    world.make("warm")?;
    let ids = world.fork("warm", MANY)?;
    let pids = ids.iter().map(|id| Ok(world.engine.sandbox(id)?.view().pid));
    let pids = pids.collect::<Result<Vec<i32>, Failure>>()?;
    for pid in &pids {
        signal(*pid, Signal::STOP)?;
    }
    let begun = Instant::now();
    let recovered = world.restart()?;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!((recovered.mute.len(), recovered.sandboxes.len()), (pids.len(), 0));
    for pid in &pids {
        assert!(lives(*pid));
        signal(*pid, Signal::CONT)?;
    }
    let recovered = world.restart()?;
    assert_eq!((recovered.mute.len(), recovered.sandboxes.len()), (0, pids.len()));
    Ok(())
}
