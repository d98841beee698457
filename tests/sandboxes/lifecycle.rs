//! From a request to the end of a sandbox.

use std::time::Duration;

use forkd_engine::{EndReason, EngineError, EngineEvent, Expiry, OnExpiry, Refusal, SandboxState};
use forkd_tests::engine::process::Failure;
use rustix::process::{Pid, Signal, kill_process};

use crate::world::{World, lives, request};

#[test]
fn sandboxes_come_and_go_and_leave_nothing() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let ids = world.fork("base", 20)?;
    let views = world.engine.sandboxes();
    assert_eq!(views.len(), 20);
    let mut pids: Vec<_> = views.iter().map(|view| view.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    assert_eq!(pids.len(), 20);
    assert!(pids.iter().all(|pid| lives(*pid)));
    assert!(views.iter().all(|view| view.state == SandboxState::Running && view.record.promised));
    assert_eq!((world.names("sandboxes").len(), world.names("layers").len()), (20, 20));
    for id in &ids {
        world.run(world.engine.sandbox(id)?.remove())?;
        assert!(matches!(world.engine.sandbox(id), Err(EngineError::NoSandbox(_))));
    }
    world.until("processes end", || !pids.iter().any(|pid| lives(*pid)));
    assert_eq!((world.names("sandboxes").len(), world.names("layers").len()), (0, 0));
    world.run(world.engine.remove_snapshot("base", false))?;
    world.assert_empty();
    Ok(())
}

#[test]
fn a_sandbox_is_paused_and_resumed() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    for _ in 0..2 {
        world.run(sandbox.pause())?;
        assert_eq!(sandbox.view().state, SandboxState::Paused);
    }
    world.run(sandbox.resume())?;
    assert_eq!(sandbox.view().state, SandboxState::Running);
    Ok(())
}

#[test]
fn a_sandbox_ends_when_its_time_is_over_and_says_so() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let mut events = world.engine.events();
    let mut wanted = request(world.source("base")?, 2);
    wanted.ttl = Some(Duration::from_secs(1));
    let created = world.run(world.engine.create(wanted))?;
    let [short, long] = &created.sandboxes[..] else { return Err("not two".into()) };
    world.run(world.engine.sandbox(long.id().as_str())?.set_expiry(Expiry::At(None)))?;
    let sandbox = world.engine.sandbox(short.id().as_str())?;
    world.until("it ends", || sandbox.view().state == SandboxState::Ended);
    let end = sandbox.view().end.ok_or("no end")?;
    assert_eq!(end.reason, EndReason::Expired);
    world.until("its process ends", || !lives(short.pid));
    assert!(matches!(world.run(sandbox.pause()), Err(EngineError::WrongState("ended"))));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(world.engine.sandbox(long.id().as_str())?.view().state, SandboxState::Running);
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        told.push(event.what);
    }
    assert!(told.contains(&EngineEvent::Sandbox(short.id().clone(), SandboxState::Ended)), "{told:?}");
    Ok(())
}

#[test]
fn a_sandbox_is_paused_with_its_expiry_and_woken() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.make("base")?;
    let mut wanted = request(world.source("base")?, 1);
    (wanted.ttl, wanted.on_expiry, wanted.wake_on_traffic) =
        (Some(Duration::from_secs(1)), OnExpiry::Pause, true);
    let created = world.run(world.engine.create(wanted))?;
    let id = created.sandboxes.first().ok_or("none")?.id().to_string();
    let sandbox = world.engine.sandbox(&id)?;
    world.until("it is paused", || sandbox.view().state == SandboxState::Paused);
    assert_eq!(sandbox.view().record.expires_unix_ms, None, "it waits for somebody");
    assert!(!world.run(sandbox.suspend())?, "it is paused already");
    let refused = world.run(sandbox.set_expiry(Expiry::OfRunning(u64::MAX)));
    assert!(matches!(refused, Err(EngineError::WrongState("paused"))), "{refused:?}");
    world.run(sandbox.set_expiry(Expiry::AtLeast(u64::MAX)))?;
    assert_eq!(sandbox.view().record.expires_unix_ms, None, "it has no time that could be longer");

    // This guest has no agent, which is found out when it runs.
    let asked = world.run(sandbox.awake_agent()).map(|_| ());
    assert!(matches!(asked, Err(EngineError::WrongState("without an agent"))), "{asked:?}");
    let view = sandbox.view();
    assert!(view.state == SandboxState::Running && view.record.expires_unix_ms.is_some(), "{view:?}");
    assert!(!world.run(sandbox.wake(None))?, "it runs already");
    assert!(sandbox.view().record.expires_unix_ms.is_some(), "and keeps its time");
    world.until("its time is over again", || sandbox.view().state == SandboxState::Paused);

    // The next daemon knows, too.
    drop(sandbox);
    world.restart()?;
    let sandbox = world.engine.sandbox(&id)?;
    assert_eq!(sandbox.view().state, SandboxState::Paused);
    assert!(world.run(sandbox.wake(None))?);
    assert_eq!((sandbox.view().state, sandbox.view().record.expires_unix_ms), (SandboxState::Running, None));
    world.run(sandbox.pause())?;
    assert!(world.run(sandbox.awake_agent()).is_err());
    assert_eq!(sandbox.view().state, SandboxState::Running, "traffic wakes it");
    Ok(())
}

#[test]
fn nothing_wakes_a_sandbox_that_was_not_made_so() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let id = world.fork("base", 1)?.remove(0);
    let sandbox = world.engine.sandbox(&id)?;
    assert!(world.run(sandbox.suspend())?);
    let asked = world.run(sandbox.awake_agent()).map(|_| ());
    assert!(matches!(asked, Err(EngineError::WrongState("paused"))), "{asked:?}");
    assert_eq!(sandbox.view().state, SandboxState::Paused);
    Ok(())
}

#[test]
fn a_killed_vm_is_noticed_and_hurts_nobody() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let ids = world.fork("base", 3)?;
    let victim = world.engine.sandbox(&ids[1])?;
    kill_process(Pid::from_raw(victim.view().pid).ok_or("no pid")?, Signal::KILL)?;
    world.until("it is noticed", || victim.view().state == SandboxState::Ended);
    assert_eq!(victim.view().end.map(|end| end.reason), Some(EndReason::Killed));
    for id in [&ids[0], &ids[2]] {
        world.run(world.engine.sandbox(id)?.pause())?;
    }
    world.fork("base", 1)?;
    Ok(())
}

#[test]
fn what_is_too_much_is_refused_by_name_and_nothing_is_left() -> Result<(), Failure> {
    let world = World::new()?;
    world.make("base")?;
    let error = world.create(world.source("base")?, 251).unwrap_err();
    assert!(matches!(error, EngineError::Refused(Refusal::Sandboxes { wanted: 251, .. })), "{error}");
    let error = world.source("other").map(drop).unwrap_err();
    assert!(matches!(error, EngineError::NoSnapshot(_)), "{error}");
    let error = world.make("base").unwrap_err();
    assert!(matches!(error, EngineError::NameTaken(_)), "{error}");
    assert_eq!(world.names("sandboxes"), [""; 0]);
    assert_eq!(world.names("zygotes"), ["base"]);
    Ok(())
}
