//! Branches, copies, rollbacks, and the end of snapshots.

use forkd_api::error::ErrorCode;
use forkd_api::sandbox::{Sandbox, SandboxState};
use forkd_api::snapshot::{RemovedSnapshots, Snapshot, SnapshotStatus};
use forkd_tests::engine::process::Failure;
#[cfg(debug_assertions)]
use rustix::process::Signal;
use serde_json::json;

use crate::world::World;

fn tags(snapshots: &[Snapshot]) -> Vec<&str> {
    snapshots.iter().map(|snapshot| snapshot.tag.as_str()).collect()
}

#[test]
fn branches_are_there_at_once_or_on_disk() -> Result<(), Failure> {
    let world = World::new()?;
    let base = world.snapshot("base")?;
    assert_eq!((base.status, base.loaded, base.memory_mib), (SnapshotStatus::Ready, true, 64));
    assert!(base.size.memory_bytes > 0, "{base:?}");
    let id = world.fork("base", 1)?.remove(0).id;
    let path = format!("POST /v1/sandboxes/{id}/branch");
    let quick: Snapshot = world.tell(&path, json!({}))?.parsed(201)?;
    assert_eq!((quick.tag.as_str(), quick.parent.as_deref()), (format!("{id}-1").as_str(), Some("base")));
    assert_eq!((quick.branched_from.as_ref(), quick.loaded), (Some(&id), true));
    assert!(quick.pause_us.is_some());
    world.fork(&quick.tag, 3)?;
    let kept: Snapshot = world.tell(&path, json!({ "tag": "kept", "wait": true }))?.parsed(201)?;
    assert_eq!(kept.status, SnapshotStatus::Ready);
    assert_eq!(world.snapshot("base")?.children, [quick.tag.as_str(), "kept"]);
    assert_eq!(world.sandbox(&id)?.branches, [quick.tag.as_str(), "kept"]);
    assert!(world.ask("GET /metrics")?.body.contains("forkd_branch_pause_seconds_count 2"));
    Ok(())
}

/// A manifest is as safe as the names of the layers that it relies on, or it is not written.
#[cfg(debug_assertions)]
#[test]
fn a_branch_whose_layers_cannot_be_synced_stays_in_memory() -> Result<(), Failure> {
    let mut world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    world.end(Signal::TERM)?;
    world.launch(&[], &[("FORKD_FAULT_SYNC", "5:layers")])?;
    world.until("the daemon answers", |world| Ok(world.ask("GET /healthz").is_ok()))?;
    let branched = world.tell(&format!("POST /v1/sandboxes/{id}/branch"), json!({ "tag": "unsafe" }))?;
    assert_eq!(branched.status, 201, "{branched:?}");
    let error = |world: &World| Ok::<_, Failure>(world.snapshot("unsafe")?.error.unwrap_or_default());
    world.until("it is told", |world| Ok(error(world)?.contains("cannot sync")))?;
    assert_eq!(world.snapshot("unsafe")?.status, SnapshotStatus::Live);
    assert!(!world.root().join("snapshots/unsafe/manifest.json").exists());
    world.fork("unsafe", 1)?;
    Ok(())
}

#[test]
fn copies_of_a_sandbox_are_made_in_one_call() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    for state in ["resume", "pause"] {
        world.ask(&format!("POST /v1/sandboxes/{id}/{state}"))?.parsed::<Sandbox>(200)?;
        let created = world.create(json!({ "from_sandbox": id, "n": 4 }))?;
        assert_eq!(created.sandboxes.len(), 4);
        // The branch that they were made of is nobody's.
        assert_eq!((world.sandbox(&id)?.branches.len(), world.snapshots()?.len()), (0, 1));
        for copy in created.sandboxes {
            assert_eq!(world.sandbox(&copy.id)?.state, SandboxState::Running);
        }
    }
    assert!(world.ask("GET /metrics")?.body.contains("forkd_branch_pause_seconds_count 2"));
    Ok(())
}

#[test]
fn a_sandbox_goes_back_in_place() -> Result<(), Failure> {
    let world = World::new()?;
    let sandboxes = world.fork("base", 2)?;
    let (id, other) = (&sandboxes[0].id, &sandboxes[1].id);
    for tag in ["one", "two"] {
        world
            .tell(&format!("POST /v1/sandboxes/{id}/branch"), json!({ "tag": tag }))?
            .parsed::<Snapshot>(201)?;
    }
    let path = format!("POST /v1/sandboxes/{id}/rollback");
    let back: Sandbox = world.tell(&path, json!({ "tag": "one" }))?.parsed(200)?;
    assert_ne!(back.pid, sandboxes[0].pid);
    assert_eq!((&back.id, &back.branches[..]), (id, &["one".to_owned()][..]));
    world.refuses(ErrorCode::WrongState, &path, json!({ "tag": "two" }))?;
    let foreign = format!("POST /v1/sandboxes/{other}/rollback");
    let says = world.refuses(ErrorCode::WrongState, &foreign, json!({ "tag": "one" }))?;
    assert!(says.contains("is not a branch of sandbox"), "{says}");
    world.refuses(ErrorCode::Malformed, &path, json!({ "tag": "A B" }))?;
    world.ask("DELETE /v1/snapshots/one")?.parsed::<RemovedSnapshots>(200)?;
    world.refuses(ErrorCode::NotFound, &path, json!({ "tag": "one" }))?;
    Ok(())
}

#[test]
fn a_snapshot_that_others_need_is_removed_with_them_or_not() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    world
        .tell(&format!("POST /v1/sandboxes/{id}/branch"), json!({ "tag": "child", "wait": true }))?
        .parsed::<Snapshot>(201)?;
    let copy = world.fork("child", 1)?.remove(0).id;
    world
        .tell(&format!("POST /v1/sandboxes/{copy}/branch"), json!({ "tag": "grandchild", "wait": true }))?
        .parsed::<Snapshot>(201)?;
    let error = world.ask("DELETE /v1/snapshots/base")?.error(ErrorCode::HasDependents)?;
    assert!(error.error.contains("child") && error.error.contains("grandchild"), "{error:?}");
    assert!(error.hint.is_some_and(|hint| hint.contains("cascade")));
    assert_eq!(tags(&world.snapshots()?), ["base", "child", "grandchild"]);
    let removed: RemovedSnapshots = world.ask("DELETE /v1/snapshots/child?cascade=true")?.parsed(200)?;
    assert_eq!(removed.removed, ["grandchild", "child"]);
    let removed: RemovedSnapshots = world.ask("DELETE /v1/snapshots/base?cascade=false")?.parsed(200)?;
    assert_eq!(removed.removed, ["base"]);
    assert_eq!(world.snapshots()?, []);
    // Their sandboxes go on.
    world.ask(&format!("POST /v1/sandboxes/{copy}/pause"))?.parsed::<Sandbox>(200)?;
    Ok(())
}
