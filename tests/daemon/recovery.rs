//! Daemons end in every way; VMs do not.

use std::time::Duration;

use forkd_api::sandbox::{Sandbox, SandboxState};
use forkd_api::snapshot::Snapshot;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::processes;
use forkd_tests::engine::tiny::{self, PATIENCE};
use forkd_tests::process::signal;
use rustix::process::Signal;
use serde_json::json;

use crate::world::{World, lives};

#[test]
fn whatever_ends_a_daemon_the_next_one_has_everything() -> Result<(), Failure> {
    let mut world = World::new()?;
    let sandboxes =
        world.create(json!({ "snapshot_tag": "base", "n": 5, "metadata": { "a": "b" } }))?.sandboxes;
    let (first, second) = (&sandboxes[0].id, &sandboxes[1].id);
    world
        .tell(&format!("POST /v1/sandboxes/{first}/branch"), json!({ "tag": "branch", "wait": true }))?
        .parsed::<Snapshot>(201)?;
    world.ask(&format!("POST /v1/sandboxes/{second}/pause"))?.parsed::<Sandbox>(200)?;
    world.tell(&format!("PUT /v1/sandboxes/{second}/ttl"), json!({ "ttl_secs": 1000 }))?;
    // Which pages processes share changes all the time.
    let snapshots = |world: &World| -> Result<Vec<Snapshot>, Failure> {
        Ok(world.snapshots()?.into_iter().map(|snapshot| Snapshot { resident: None, ..snapshot }).collect())
    };
    let before = (world.sandboxes("")?, snapshots(&world)?);
    assert_eq!((before.0.len(), before.1.len()), (5, 2));
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL, Signal::INT] {
        world.end(signal)?;
        assert!(before.0.iter().all(|sandbox| sandbox.pid.is_some_and(lives)), "after {signal:?}");
        world.start(&[])?;
        assert_eq!((world.sandboxes("")?, snapshots(&world)?), before, "after {signal:?}");
    }
    let log = world.log();
    assert!(log.contains("adopted running VMs") && log.contains("sandboxes=5"), "{log}");
    assert!(log.contains(&format!("id={first}")) && log.contains("tag=branch"), "{log}");

    // And all of it goes on.
    let resumed: Sandbox = world.ask(&format!("POST /v1/sandboxes/{second}/resume"))?.parsed(200)?;
    assert_eq!(resumed.state, SandboxState::Running);
    world
        .tell(&format!("POST /v1/sandboxes/{first}/rollback"), json!({ "tag": "branch" }))?
        .parsed::<Sandbox>(200)?;
    world.fork("branch", 2)?;
    for sandbox in world.sandboxes("")? {
        assert_eq!(world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?.status, 204);
    }
    assert!(!before.0.iter().any(|sandbox| sandbox.pid.is_some_and(lives)));
    Ok(())
}

#[test]
fn time_that_was_over_while_no_daemon_looked_is_over() -> Result<(), Failure> {
    let mut world = World::new()?;
    let created = world.create(json!({ "snapshot_tag": "base", "ttl_secs": 1 }))?;
    let sandbox = created.sandboxes.first().ok_or("none")?;
    world.end(Signal::KILL)?;
    std::thread::sleep(Duration::from_millis(1200));
    assert!(sandbox.pid.is_some_and(lives));
    world.start(&[])?;
    world.until("it ends", |_| Ok(!sandbox.pid.is_some_and(lives)))
}

#[test]
fn a_snapshot_without_a_process_is_loaded_and_counted() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.end(Signal::KILL)?;
    // As after a boot of the host: what is on disk is all there is.
    let (runtime, engine, _) = tiny::start(&world.root())?;
    assert!(runtime.block_on(engine.snapshot("base")?.evict()));
    drop(engine);
    runtime.shutdown_timeout(PATIENCE);
    world.start(&[])?;
    assert!(!world.snapshot("base")?.loaded);
    world.fork("base", 2)?;
    assert!(world.snapshot("base")?.loaded);
    world.until("it is counted", |world| {
        Ok(world.ask("GET /metrics")?.body.contains("forkd_zygote_loads_total 1"))
    })
}

#[test]
fn a_budget_for_zygotes_is_kept_and_metered() -> Result<(), Failure> {
    let world = World::with(&["--zygote-memory", "0"])?;
    let evicted = |count: u32| {
        world.until("it is evicted", |world| {
            let metrics = world.ask("GET /metrics")?.body;
            Ok(metrics.contains(&format!("forkd_zygote_evictions_total {count}\n"))
                && metrics.contains("forkd_zygotes 0\n"))
        })
    };
    evicted(1)?;
    assert!(!world.snapshot("base")?.loaded);
    world.fork("base", 2)?;
    world.until("it is loaded", |world| {
        Ok(world.ask("GET /metrics")?.body.contains("forkd_zygote_loads_total 1\n"))
    })?;
    evicted(2)?;
    assert!(world.log().contains("unloaded an idle snapshot from memory"), "{}", world.log());
    Ok(())
}

#[test]
fn a_zygote_that_goes_in_the_middle_of_forks_leaves_no_vm_that_nobody_knows() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    for (number, milliseconds) in (0..12).zip([1, 2, 4, 7, 11, 16].into_iter().cycle()) {
        let tag = format!("t{number}");
        let branch = json!({ "tag": tag, "wait": true });
        world.tell(&format!("POST /v1/sandboxes/{id}/branch"), branch)?.parsed::<Snapshot>(201)?;
        let zygotes = processes::below(&world.root())?.into_iter();
        let zygote = zygotes.filter(|(_, directory)| directory.ends_with(&tag)).map(|(pid, _)| pid).next();
        let answer = std::thread::scope(|scope| {
            let body = json!({ "snapshot_tag": tag, "n": 10 });
            let forking = scope.spawn(|| world.tell("POST /v1/sandboxes", body));
            std::thread::sleep(Duration::from_millis(milliseconds));
            match number % 2 {
                0 => drop(world.ask(&format!("DELETE /v1/snapshots/{tag}"))?),
                _ => signal(Signal::KILL, zygote.ok_or("no zygote")?.unsigned_abs())?,
            }
            forking.join().map_err(|_| "a client panicked")?
        })?;
        // All of them, or none.
        let made = world.sandboxes(&format!("?limit=1000&snapshot_tag={tag}"))?;
        assert_eq!(made.len(), if answer.status == 201 { 10 } else { 0 }, "{answer:?}");
        world.until_none_is_lost()?;
        for sandbox in made {
            world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?;
        }
    }
    Ok(())
}

#[test]
fn who_goes_away_leaves_no_branch_of_copies() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    let body = json!({ "from_sandbox": id, "n": 3 });
    for milliseconds in [0, 3, 8, 13, 21, 34, 55] {
        world.abandon("POST /v1/sandboxes", &body, Duration::from_millis(milliseconds))?;
    }
    // Branches of a sandbox are made one after another: those that were given up are behind this one.
    world.create(body)?;
    world.until("no branch is left", |world| {
        Ok(world.snapshots()?.len() == 1 && world.sandbox(&id)?.branches.is_empty())
    })?;
    world.until_none_is_lost()
}

#[test]
fn who_goes_away_leaves_no_vm_that_nobody_knows() -> Result<(), Failure> {
    let mut world = World::new()?;
    let body = json!({ "snapshot_tag": "base", "n": 20 });
    for milliseconds in [0, 1, 3, 5, 8, 13, 21] {
        world.abandon("POST /v1/sandboxes", &body, Duration::from_millis(milliseconds))?;
    }
    world.until_none_is_lost()?;
    // The same for a daemon that is stopped, or killed, in the middle of it.
    for (signal, milliseconds) in
        [(Signal::TERM, 0), (Signal::TERM, 8), (Signal::KILL, 3), (Signal::KILL, 12)]
    {
        for sandbox in world.sandboxes("?limit=1000")? {
            world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?;
        }
        world.abandon("POST /v1/sandboxes", &body, Duration::from_millis(milliseconds))?;
        world.end(signal)?;
        world.start(&[])?;
        world.until_none_is_lost()?;
    }
    Ok(())
}
