//! Guests that answer nothing, too much or nonsense fail their own requests, and no others.

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

/// Limits are of what is sent, where one character can be twelve bytes: nothing that code shows ends its interpreter.
#[test]
fn an_interpreter_survives_what_its_code_shows() -> Result<(), Failure> {
    let mut world = World::new()?;
    let (id, _agent) = world.real()?;
    let eval = |language: &str, code: &str| -> Result<Evaluated, Failure> {
        let wanted = json!({ "code": code, "language": language, "timeout_secs": 120 });
        world.tell(&format!("POST /v1/sandboxes/{id}/eval"), wanted)?.parsed(200)
    };
    eval("python", "kept = 7")?;
    let shown =
        eval("python", "class Long:\n  def __repr__(self): return '\\U0001f600' * (3 << 20)\nLong()")?;
    assert!(shown.result.is_some_and(|text| text.ends_with("[cut: 3145728 characters in all]")));
    let failed = eval("python", "raise ValueError('\u{e9}' * (9 << 20))")?.error.ok_or("no error")?;
    assert!(failed.value.ends_with("[cut: 9437184 characters in all]"), "{}", failed.value.len());
    let many = "class Many:\n  def _repr_html_(self): return '\u{e9}' * (1 << 20)\n  _repr_svg_ = _repr_markdown_ = _repr_html_\n  \
                def __repr__(self): return 'many'\nMany()";
    assert_eq!(eval("python", many)?.result.as_deref(), Some("many"));
    let threads = "import threading\ndef work():\n  for _ in range(50): display('x' * 5000)\n\
                   threads = [threading.Thread(target=work) for _ in range(4)]\n\
                   for thread in threads: thread.start()\nfor thread in threads: thread.join()\n'over'";
    let shown = eval("python", threads)?;
    assert_eq!((shown.results.len(), shown.result.as_deref()), (201, Some("over")));
    // The conversation is not its child's.
    let fork =
        "import os\nchild = os.fork()\nif child == 0: raise ValueError('child')\nos.waitpid(child, 0)[1]";
    let forked = eval("python", fork)?;
    assert_eq!((forked.result.as_deref(), forked.error), (Some("0"), None));
    assert_eq!(eval("python", "kept")?.result.as_deref(), Some("7"));

    eval("javascript", "var kept = 7")?;
    let shown = eval(
        "javascript",
        "display({ [Symbol.for('Jupyter.display')]: () => ({ 'text/plain': '\\u0001'.repeat(9 << 20), 'text/html': '\\u0001'.repeat(2 << 20) }) })",
    )?;
    let text = shown.results.first().and_then(|result| result.get("text/plain")).ok_or("no text")?;
    assert!(text.ends_with("[cut: 9437184 characters in all]"), "{}", text.len());
    let failed = eval("javascript", "throw new Error('\\u0001'.repeat(9 << 20))")?.error.ok_or("no error")?;
    assert!(failed.value.ends_with("[cut: 9437184 characters in all]"), "{}", failed.value.len());
    assert_eq!(eval("javascript", "kept")?.result.as_deref(), Some("7"));
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
    let begun = Instant::now();
    world.refuses(ErrorCode::GuestTimeout, &eval, json!({ "code": "silent", "timeout_secs": 1 }))?;
    let stalled: Evaluated = world.tell(&eval, json!({ "code": "stall", "timeout_secs": 1 }))?.parsed(200)?;
    assert!(stalled.timed_out && begun.elapsed().as_secs() < 40, "{stalled:?}");
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
