//! Guests that say nothing, too much, or nonsense are somebody's answer, and nobody else's business.

use std::time::Instant;

use forkd_api::code::Evaluated;
use forkd_api::error::ErrorCode;
use forkd_api::exec::Executed;
use forkd_tests::engine::process::Failure;
use serde_json::json;

use crate::world::World;

#[test]
fn what_an_interpreter_refuses_is_not_the_guest_s_failure() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let eval = format!("POST /v1/sandboxes/{id}/eval");
    let refusal = world.refuses(ErrorCode::NotFound, &eval, json!({ "code": "1", "context": "none" }))?;
    assert_eq!(refusal, "Context none not found");
    Ok(())
}

#[test]
fn guests_that_answer_nonsense_or_nothing_are_named() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let id = world.fork("base", 2)?.remove(0).id;
    let (exec, eval) = (format!("POST /v1/sandboxes/{id}/exec"), format!("POST /v1/sandboxes/{id}/eval"));
    let executed: Executed = world.tell(&exec, json!({ "args": ["fine"] }))?.parsed(200)?;
    assert_eq!((executed.exit_code, executed.stdout.as_str()), (0, ""));
    world.tell(&eval, json!({ "code": "fine" }))?.parsed::<Evaluated>(200)?;
    for what in ["no-http", "garbage", "half", "endless"] {
        world
            .refuses(ErrorCode::GuestFailed, &exec, json!({ "args": [what] }))
            .map_err(|error| format!("{what}: {error}"))?;
        world
            .refuses(ErrorCode::GuestFailed, &eval, json!({ "code": what }))
            .map_err(|error| format!("{what}: {error}"))?;
    }
    world.refuses(ErrorCode::Malformed, &exec, json!({ "args": ["refuse"] }))?;
    world.refuses(ErrorCode::GuestFailed, &eval, json!({ "code": "refuse" }))?;
    for what in ["silent", "stall"] {
        let begun = Instant::now();
        world.refuses(ErrorCode::GuestTimeout, &eval, json!({ "code": what, "timeout_secs": 1 }))?;
        assert!(begun.elapsed().as_secs() < 20, "{what}");
    }
    // The sandbox is none the worse for it.
    world.tell(&exec, json!({ "args": ["fine"] }))?.parsed::<Executed>(200)?;
    Ok(())
}

#[test]
fn what_is_too_much_is_cut_and_said_to_be() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let id = world.fork("base", 1)?.remove(0).id;
    let executed: Executed = world
        .tell(&format!("POST /v1/sandboxes/{id}/exec"), json!({ "args": ["flood", "20"] }))?
        .parsed(200)?;
    assert!(executed.truncated && executed.stdout.len() == 8 << 20, "{}", executed.stdout.len());
    let evaluated: Evaluated =
        world.tell(&format!("POST /v1/sandboxes/{id}/eval"), json!({ "code": "flood 20" }))?.parsed(200)?;
    assert!(evaluated.truncated && evaluated.stdout.len() <= 16 << 20, "{}", evaluated.stdout.len());
    Ok(())
}
