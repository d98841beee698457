//! From a request to the end of a sandbox.

use std::collections::BTreeSet;

use forkd_api::error::ErrorCode;
use forkd_api::named::Named;
use forkd_api::sandbox::{EndReason, OnExpiry, Sandbox, SandboxList, SandboxState, SandboxStats};
use forkd_tests::engine::firecracker::guest::WARM;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny;
use serde_json::json;

use crate::world::{World, lives};

fn ids(sandboxes: &[Sandbox]) -> BTreeSet<String> {
    sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect()
}

#[test]
fn a_name_is_a_snapshot_or_a_sandbox() -> Result<(), Failure> {
    let world = World::new()?;
    let created = world.create(json!({ "source": "base" }))?;
    let id = &created.sandboxes[0].id;
    let copied = world.create(json!({ "source": id }))?;
    assert_eq!(copied.sandboxes.len(), 1);
    let named: Named = world.ask("GET /v1/names/base")?.parsed(200)?;
    assert!(matches!(&named, Named::Snapshot(snapshot) if snapshot.tag == "base"), "{named:?}");
    let named: Named = world.ask(&format!("GET /v1/names/{id}"))?.parsed(200)?;
    assert!(matches!(&named, Named::Sandbox(sandbox) if sandbox.id == *id), "{named:?}");
    world.ask("GET /v1/names/nothing")?.error(ErrorCode::NotFound)?;
    world.refuses(ErrorCode::NotFound, "POST /v1/sandboxes", json!({ "source": "nothing" }))?;
    world.refuses(ErrorCode::Malformed, "POST /v1/sandboxes", json!({ "source": id, "from_sandbox": id }))?;
    Ok(())
}

#[test]
fn a_sandbox_is_paused_at_its_expiry_and_woken_by_traffic() -> Result<(), Failure> {
    let world = World::new()?;
    let asked = json!({ "source": "base", "ttl_secs": 1, "on_expiry": "pause", "wake_on_traffic": true });
    let sandbox = world.create(asked)?.sandboxes.remove(0);
    assert!(sandbox.on_expiry == OnExpiry::Pause && sandbox.wake_on_traffic, "{sandbox:?}");
    let id = &sandbox.id;
    world.until("it is paused", |world| Ok(world.sandbox(id)?.state == SandboxState::Paused))?;
    assert_eq!(world.sandbox(id)?.expires_at_unix, None);
    world.tell(&format!("PUT /v1/sandboxes/{id}/ttl"), json!({ "ttl_secs": 600 }))?.parsed::<Sandbox>(200)?;
    // This guest has no agent to answer, but it runs.
    world.refuses(
        ErrorCode::WrongState,
        &format!("POST /v1/sandboxes/{id}/exec"),
        json!({ "args": ["true"] }),
    )?;
    let woken = world.sandbox(id)?;
    assert!(woken.state == SandboxState::Running && woken.expires_at_unix.is_some(), "{woken:?}");
    Ok(())
}

#[test]
fn twenty_come_and_go_through_the_api() -> Result<(), Failure> {
    let world = World::new()?;
    let created = world.create(json!({ "snapshot_tag": "base", "n": 20, "metadata": { "job": "a" } }))?;
    assert!(created.timing.restored_us <= created.timing.ready_us && created.timing.ready_us > 0);
    let pids: BTreeSet<i32> = created.sandboxes.iter().filter_map(|sandbox| sandbox.pid).collect();
    assert_eq!((created.sandboxes.len(), pids.len()), (20, 20));
    assert!(pids.iter().all(|pid| lives(*pid)));
    let one = &created.sandboxes[0];
    assert_eq!((one.state, one.vcpus, one.memory_mib, one.disk_mib), (SandboxState::Running, 1, 64, 16));

    // Pages are the whole list, once.
    let mut seen = Vec::new();
    let mut query = "?limit=7".to_owned();
    loop {
        let page: SandboxList = world.ask(&format!("GET /v1/sandboxes{query}"))?.parsed(200)?;
        assert!(page.sandboxes.len() <= 7);
        seen.extend(page.sandboxes);
        match page.next {
            Some(next) => query = format!("?limit=7&after={next}"),
            None => break,
        }
    }
    assert_eq!((seen.len(), ids(&seen)), (20, ids(&created.sandboxes)));
    assert!(seen.is_sorted_by_key(|sandbox| sandbox.created_at_unix));

    world.fork("base", 2)?;
    assert_eq!(world.sandboxes("?metadata=job%3Da")?.len(), 20);
    assert_eq!(world.sandboxes("?snapshot_tag=base")?.len(), 22);
    assert_eq!(world.sandboxes("?snapshot_tag=other")?.len(), 0);
    let paused: Sandbox = world.ask(&format!("POST /v1/sandboxes/{}/pause", one.id))?.parsed(200)?;
    assert_eq!(paused.state, SandboxState::Paused);
    assert_eq!(ids(&world.sandboxes("?state=paused")?), ids(&[paused]));
    let resumed: Sandbox = world.ask(&format!("POST /v1/sandboxes/{}/resume", one.id))?.parsed(200)?;
    assert_eq!((resumed.state, resumed.pid), (SandboxState::Running, one.pid));

    let metrics = world.ask("GET /metrics")?.body;
    for line in
        ["forkd_forks_total 22", "forkd_fork_seconds_count 2", "forkd_sandboxes{state=\"running\"} 22"]
    {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    for sandbox in world.sandboxes("")? {
        assert_eq!(world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?.status, 204);
    }
    assert!(!pids.iter().any(|pid| lives(*pid)));
    world.ask(&format!("GET /v1/sandboxes/{}", one.id))?.error(ErrorCode::NotFound)?;
    assert_eq!(world.ask(&format!("DELETE /v1/sandboxes/{}", one.id))?.status, 204, "as it was");
    world.ask("DELETE /v1/sandboxes/none")?.error(ErrorCode::NotFound)?;
    world.until("their files are gone", |world| Ok(tiny::names(&world.root(), "sandboxes").is_empty()))
}

#[test]
fn what_a_guest_prints_and_uses_is_shown() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    let console = world.ask(&format!("GET /v1/sandboxes/{id}/console"))?;
    assert_eq!(console.status, 200);
    assert!(console.head.contains("content-type: text/plain"), "{console:?}");
    // How much of its only line it has said to its parent's console depends on when that was frozen.
    assert!(format!("{WARM}\n").contains(&console.body), "{console:?}");
    assert!(world.ask(&format!("GET /v1/sandboxes/{id}/console?bytes=3"))?.body.len() <= 3);
    let stats: SandboxStats = world.ask(&format!("GET /v1/sandboxes/{id}/stats"))?.parsed(200)?;
    assert!(stats.memory_private_bytes > 0 && stats.memory_shared_bytes > 0, "{stats:?}");
    Ok(())
}

#[test]
fn time_is_given_taken_and_ends() -> Result<(), Failure> {
    let world = World::new()?;
    let created = world.create(json!({ "snapshot_tag": "base", "n": 2, "ttl_secs": 2 }))?;
    let [short, long] = &created.sandboxes[..] else { return Err("not two".into()) };
    assert_eq!(short.expires_at_unix.map(|at| (at - short.created_at_unix).abs_diff(2) <= 1), Some(true));
    let path = format!("PUT /v1/sandboxes/{}/ttl", long.id);
    let extended: Sandbox = world.tell(&path, json!({ "ttl_secs": 1000 }))?.parsed(200)?;
    assert!(extended.expires_at_unix > short.expires_at_unix.map(|at| at + 900));
    let endless: Sandbox = world.tell(&path, json!({ "ttl_secs": null }))?.parsed(200)?;
    assert_eq!(endless.expires_at_unix, None);
    world.until("its time is over", |world| Ok(world.sandbox(&short.id)?.state == SandboxState::Ended))?;
    let ended = world.sandbox(&short.id)?;
    assert_eq!((ended.ended.map(|ended| ended.reason), ended.pid), (Some(EndReason::Expired), None));
    assert_eq!(world.sandbox(&long.id)?.state, SandboxState::Running);
    assert_eq!(ids(&world.sandboxes("?state=ended")?).len(), 1);
    Ok(())
}

#[test]
fn a_request_that_is_repeated_creates_once() -> Result<(), Failure> {
    let world = World::new()?;
    let body = json!({ "snapshot_tag": "base", "n": 3 });
    let create = || world.tell_with("idempotency-key: k\r\n", "POST /v1/sandboxes", body.clone());
    let (first, second) = (create()?, create()?);
    assert_eq!((first.status, &first.body), (201, &second.body));
    assert!(
        second.head.contains("idempotency-replayed: true") && !first.head.contains("idempotency-replayed")
    );
    assert_eq!(world.sandboxes("")?.len(), 3);
    let other = json!({ "snapshot_tag": "base", "n": 4 });
    let refused = world.tell_with("idempotency-key: k\r\n", "POST /v1/sandboxes", other)?;
    refused.error(ErrorCode::IdempotencyMismatch)?;
    assert_eq!(world.sandboxes("")?.len(), 3);
    Ok(())
}
