//! What is too much, taken, or over is refused by name, and nothing is left of it. What can be refused without a VM is tested
//! with the daemon's own tests.

use forkd_api::error::ErrorCode;
use forkd_tests::engine::process::Failure;
use serde_json::json;

use crate::world::World;

#[test]
fn limits_have_names() -> Result<(), Failure> {
    for (options, n, code, says) in [
        (["--max-sandboxes", "3"], 4, ErrorCode::TooMany, "0 running, 4 requested, limit 3"),
        (["--max-memory", "32M"], 1, ErrorCode::NoMemory, "64 MiB requested, 32 MiB available"),
        (["--free-disk", "900T"], 1, ErrorCode::NoDisk, "MiB reserved"),
    ] {
        let world = World::with(&options)?;
        let refused =
            world.tell("POST /v1/sandboxes", json!({ "snapshot_tag": "base", "n": n }))?.error(code)?;
        assert!(refused.error.contains(says), "{refused:?}");
        assert!(refused.hint.is_some_and(|hint| hint.contains(options[0])), "{options:?}");
        assert_eq!(world.sandboxes("")?, []);
    }
    Ok(())
}

#[test]
fn a_sandbox_may_have_less_disk_than_its_snapshot_and_not_more() -> Result<(), Failure> {
    let world = World::new()?;
    let with = |source: &str, name: &str, mib: u64| json!({ source: name, "limits": { "disk_mib": mib } });
    let small = world.create(with("snapshot_tag", "base", 4))?.sandboxes.remove(0);
    assert_eq!((small.disk_mib, world.fork("base", 1)?[0].disk_mib), (4, 16));
    let refused =
        world.refuses(ErrorCode::Malformed, "POST /v1/sandboxes", with("snapshot_tag", "base", 17))?;
    assert!(refused.contains("17 MiB") && refused.contains("16 MiB"), "{refused}");
    // Of a sandbox that has less, no branch is left.
    world.refuses(ErrorCode::Malformed, "POST /v1/sandboxes", with("from_sandbox", &small.id, 5))?;
    assert_eq!(world.snapshots()?.len(), 1);
    let copy = world.create(with("from_sandbox", &small.id, 3))?.sandboxes.remove(0);
    assert_eq!(copy.disk_mib, 3);
    world.tell(&format!("POST /v1/sandboxes/{}/branch", small.id), json!({ "tag": "kept" }))?;
    let back = world.tell(&format!("POST /v1/sandboxes/{}/rollback", small.id), json!({ "tag": "kept" }))?;
    assert_eq!(back.parsed::<forkd_api::sandbox::Sandbox>(200)?.disk_mib, 4);
    Ok(())
}

/// What only a cgroup can keep is refused by a daemon without them, and not forgotten.
#[test]
fn a_limit_that_cannot_be_kept_is_refused() -> Result<(), Failure> {
    let world = World::new()?;
    for limits in [json!({ "memory_mib": 64 }), json!({ "cpu_percent": 50 }), json!({ "io_per_sec": 9 })] {
        let wanted = json!({ "snapshot_tag": "base", "limits": limits });
        let refused = world.refuses(ErrorCode::Malformed, "POST /v1/sandboxes", wanted)?;
        assert!(refused.contains("no cgroups"), "{refused}");
    }
    assert_eq!(world.sandboxes("")?, []);
    Ok(())
}

/// Whoever asks at the same time does not get the same room.
#[test]
fn rooms_are_given_once() -> Result<(), Failure> {
    let world = World::with(&["--max-sandboxes", "3"])?;
    for _ in 0..5 {
        let statuses: Vec<u16> = std::thread::scope(|scope| {
            let create = || {
                let wanted = json!({ "snapshot_tag": "base", "n": 2 });
                world.tell("POST /v1/sandboxes", wanted).map(|answer| answer.status).unwrap_or(0)
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(create)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(0)).collect()
        });
        let made = statuses.iter().filter(|status| **status == 201).count();
        assert_eq!((made, world.sandboxes("")?.len()), (1, 2), "{statuses:?}");
        assert!(statuses.iter().all(|status| [201, 429].contains(status)), "{statuses:?}");
        for sandbox in world.sandboxes("")? {
            world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?;
        }
    }
    Ok(())
}

#[test]
fn a_copy_that_is_too_much_leaves_no_branch() -> Result<(), Failure> {
    let world = World::with(&["--max-sandboxes", "3"])?;
    let id = world.fork("base", 1)?.remove(0).id;
    world.refuses(ErrorCode::TooMany, "POST /v1/sandboxes", json!({ "from_sandbox": id, "n": 3 }))?;
    assert_eq!((world.snapshots()?.len(), world.sandbox(&id)?.branches.len()), (1, 0));
    Ok(())
}

#[test]
fn a_tag_that_is_taken_or_none_is_refused() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    let path = format!("POST /v1/sandboxes/{id}/branch");
    world.refuses(ErrorCode::NameTaken, &path, json!({ "tag": "base" }))?;
    world.refuses(ErrorCode::Malformed, &path, json!({ "tag": "../x" }))?;
    world.refuses(ErrorCode::Malformed, &format!("PUT /v1/sandboxes/{id}/ttl"), json!({ "ttl_secs": 0 }))?;
    assert_eq!(world.sandbox(&id)?.branches, [""; 0]);
    Ok(())
}

#[test]
fn one_that_has_ended_can_only_be_looked_at() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.ended()?;
    for (request, body) in [
        ("POST /v1/sandboxes/ID/pause", json!({})),
        ("POST /v1/sandboxes/ID/resume", json!({})),
        ("POST /v1/sandboxes/ID/branch", json!({})),
        ("POST /v1/sandboxes/ID/rollback", json!({ "tag": "t" })),
        ("PUT /v1/sandboxes/ID/ttl", json!({ "ttl_secs": 9 })),
        ("GET /v1/sandboxes/ID/stats", json!({})),
        ("POST /v1/sandboxes/ID/exec", json!({ "args": ["true"] })),
        ("POST /v1/sandboxes/ID/eval", json!({ "code": "1" })),
    ] {
        world.refuses(ErrorCode::WrongState, &request.replace("ID", &id), body)?;
    }
    world.refuses(ErrorCode::WrongState, "POST /v1/sandboxes", json!({ "from_sandbox": id }))?;
    assert_eq!(world.ask(&format!("GET /v1/sandboxes/{id}/console"))?.status, 200);
    assert_eq!(world.ask(&format!("DELETE /v1/sandboxes/{id}"))?.status, 204);
    Ok(())
}

#[test]
fn a_guest_that_cannot_answer_is_not_asked() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    let (exec, eval) = (format!("POST /v1/sandboxes/{id}/exec"), format!("POST /v1/sandboxes/{id}/eval"));
    for (state, says) in [("resume", "no guest agent"), ("pause", "paused")] {
        world.ask(&format!("POST /v1/sandboxes/{id}/{state}"))?;
        let command = world.refuses(ErrorCode::WrongState, &exec, json!({ "args": ["true"] }))?;
        let code = world.refuses(ErrorCode::WrongState, &eval, json!({ "code": "1" }))?;
        assert!(command.contains(says) && code.contains(says), "{command} {code}");
    }
    Ok(())
}
