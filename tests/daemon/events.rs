//! What happens is told as it happens.

use forkd_api::error::ErrorCode;
use forkd_tests::engine::process::Failure;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::world::World;

#[test]
fn a_life_is_told_to_its_end() -> Result<(), Failure> {
    let mut world = World::new()?;
    let mut lines = world.lines("GET /v1/events")?;
    let id = world.fork("base", 1)?.remove(0).id;
    world.ask(&format!("POST /v1/sandboxes/{id}/pause"))?;
    world.tell(&format!("POST /v1/sandboxes/{id}/branch"), json!({ "tag": "t", "wait": true }))?;
    world.tell(&format!("POST /v1/sandboxes/{id}/rollback"), json!({ "tag": "t" }))?;
    world.ask(&format!("DELETE /v1/sandboxes/{id}"))?;
    world.ask("DELETE /v1/snapshots/t")?;
    let ended = world.ended()?;
    world.end(Signal::TERM)?;
    let mut told = Vec::new();
    while let Some(mut event) = lines.next()? {
        assert!(event["at_unix_ms"].as_u64().is_some_and(|at| at > 1_600_000_000_000), "{event}");
        let object = event.as_object_mut().ok_or("no object")?;
        object.remove("at_unix_ms");
        assert!(object.remove("cursor").is_some());
        told.push(event);
    }
    let of =
        |key: &str, name: &str| -> Vec<&Value> { told.iter().filter(|event| event[key] == name).collect() };
    assert_eq!(
        of("id", &id),
        [
            &json!({ "event": "sandbox", "id": id, "state": "running" }),
            &json!({ "event": "sandbox", "id": id, "state": "paused" }),
            &json!({ "event": "sandbox", "id": id, "state": "running" }),
            &json!({ "event": "rolled_back", "id": id, "tag": "t" }),
            &json!({ "event": "sandbox_removed", "id": id }),
        ]
    );
    let statuses: Vec<&Value> = of("tag", "t").into_iter().filter(|event| event["id"].is_null()).collect();
    assert_eq!(
        statuses,
        [
            &json!({ "event": "snapshot", "tag": "t", "status": "live" }),
            &json!({ "event": "snapshot", "tag": "t", "status": "persisting" }),
            &json!({ "event": "snapshot", "tag": "t", "status": "ready" }),
            &json!({ "event": "snapshot_removed", "tag": "t" }),
        ]
    );
    let end = of("id", &ended).pop().ok_or("no end")?;
    assert_eq!((&end["state"], &end["ended"]["reason"]), (&json!("ended"), &json!("expired")));
    world.start(&[])
}

#[test]
fn who_comes_back_with_a_cursor_has_missed_nothing() -> Result<(), Failure> {
    let mut world = World::new()?;
    let id = world.fork("base", 1)?.remove(0).id;
    let mut lines = world.lines(&format!("GET /v1/events?sandbox={id}"))?;
    let (pause, resume) =
        (format!("POST /v1/sandboxes/{id}/pause"), format!("POST /v1/sandboxes/{id}/resume"));
    world.ask(&pause)?;
    let first = lines.next()?.ok_or("no event")?;
    assert_eq!(first["state"], "paused");
    drop(lines);
    // Nobody listens to these.
    world.ask(&resume)?;
    world.fork("base", 1)?;
    world.ask(&pause)?;
    let cursor = first["cursor"].as_str().ok_or("no cursor")?.to_owned();
    let mut lines = world.lines(&format!("GET /v1/events?sandbox={id}&event=sandbox&after={cursor}"))?;
    for state in ["running", "paused"] {
        assert_eq!(lines.next()?.ok_or("no event")?["state"], state);
    }
    for wrong in ["after=x", "event=nothing", "sandbox=", "what=1"] {
        world.refuses(ErrorCode::Malformed, &format!("GET /v1/events?{wrong}"), json!({}))?;
    }
    drop(lines);
    // The next daemon does not know what was before it, and says so.
    world.end(Signal::TERM)?;
    world.start(&[])?;
    let mut lines = world.lines(&format!("GET /v1/events?after={cursor}"))?;
    let missed = lines.next()?.ok_or("no event")?;
    assert_eq!((&missed["event"], &missed["count"]), (&json!("missed"), &Value::Null));
    Ok(())
}

/// A client that does not read costs the daemon no more than its bound, and the others nothing.
#[test]
fn who_does_not_read_misses_events_and_holds_nobody_up() -> Result<(), Failure> {
    let world = World::new()?;
    let mut slow = world.lines("GET /v1/events")?;
    let id = world.fork("base", 1)?.remove(0).id;
    // More than the sockets' buffers and the daemon's bound hold together.
    let mut missed = None;
    for _ in 0..6000 {
        world.ask(&format!("POST /v1/sandboxes/{id}/pause"))?;
        world.ask(&format!("POST /v1/sandboxes/{id}/resume"))?;
    }
    for _ in 0..12_001 {
        let event = slow.next()?.ok_or("the stream has ended")?;
        if event["event"] == "missed" {
            missed = event["count"].as_u64();
            break;
        }
    }
    assert!(missed.is_some_and(|count| count > 0));
    Ok(())
}
