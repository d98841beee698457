//! What is too much, taken, or over is refused by name, and nothing is left of it. What can be refused without a VM is tested
//! with the daemon's own tests.

use forkd_api::error::ErrorCode;
use forkd_tests::engine::process::Failure;
use serde_json::json;

use crate::world::World;

#[test]
fn limits_have_names() -> Result<(), Failure> {
    for (options, n, code, says) in [
        (["--max-sandboxes", "3"], 4, ErrorCode::TooMany, "this host takes 3 at most"),
        (["--max-memory", "32M"], 1, ErrorCode::NoMemory, "sandboxes of 64 MiB"),
        (["--free-disk", "900T"], 1, ErrorCode::NoDisk, "are kept free"),
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
    ] {
        world.refuses(ErrorCode::WrongState, &request.replace("ID", &id), body)?;
    }
    world.refuses(ErrorCode::WrongState, "POST /v1/sandboxes", json!({ "from_sandbox": id }))?;
    assert_eq!(world.ask(&format!("GET /v1/sandboxes/{id}/console"))?.status, 200);
    assert_eq!(world.ask(&format!("DELETE /v1/sandboxes/{id}"))?.status, 204);
    Ok(())
}
