//! Starting, once and often, alone and in company.

use std::net::TcpListener;
use std::process::Stdio;

use forkd_tests::binaries::transcript;
use forkd_tests::scale::count;
use forkd_tests::{TestResult, check};
use serde_json::Value;

use crate::world::{Failure, World};

fn start(world: &World) -> Result<Value, Failure> {
    Ok(serde_json::from_str(&world.forkd(&["start", "--json"])?)?)
}

pub fn a_second_start_finds_the_first() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    let first = start(&world)?;
    check!(first["start"]["already"] == false, "{first}");
    let second = start(&world)?;
    check!(second["start"]["already"] == true, "{second}");
    check!(first["machine"]["pid"] == second["machine"]["pid"], "the machine was started anew");
    let refused = world.refused(&["init"])?;
    check!(refused.contains("there is a machine default already"), "init says: {refused}");
    Ok(())
}

pub fn two_starts_at_once_make_one_machine() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    let spawn = || world.command(&["start", "--json"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let both = [spawn()?, spawn()?].map(std::process::Child::wait_with_output);
    let mut answers = Vec::new();
    for output in both {
        let output = output?;
        check!(output.status.success(), "{}", transcript(&output));
        answers.push(serde_json::from_slice::<Value>(&output.stdout)?);
    }
    let already: Vec<bool> = answers.iter().map(|answer| answer["start"]["already"] == true).collect();
    check!(already[0] != already[1], "both or neither started it: {answers:?}");
    check!(
        answers[0]["machine"]["pid"] == answers[1]["machine"]["pid"],
        "there are two machines: {answers:?}"
    );
    Ok(())
}

/// The ports of the last run belong to somebody else now.
pub fn taken_ports_are_not_a_problem() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    let before = start(&world)?;
    world.forkd(&["stop"])?;
    let mut taken = Vec::new();
    for name in ["ssh_port", "api_port"] {
        let port = u16::try_from(before["machine"][name].as_u64().ok_or("no port")?)?;
        taken.push(TcpListener::bind(("127.0.0.1", port))?);
    }
    let after = start(&world)?;
    for name in ["ssh_port", "api_port"] {
        check!(before["machine"][name] != after["machine"][name], "{name} did not change: {after}");
    }
    world.exec(&["true"])?;
    Ok(())
}

/// No boot hangs: each takes exactly one attempt.
pub fn many_in_a_row() -> TestResult {
    let world = World::new()?;
    world.forkd(&["init"])?;
    let mut hung = Vec::new();
    for round in 0..count(2, 30) {
        let started = start(&world)?;
        if started["start"]["attempts"] != 1 {
            hung.push(round);
        }
        check!(world.exec(&["cat", "/proc/sys/kernel/ostype"])? == "Linux\n", "round {round}");
        let stopped = world.forkd(&["stop", "--json"])?;
        check!(stopped.contains("clean"), "round {round}: stop says {stopped}");
    }
    check!(hung.is_empty(), "boots that hung and were repeated: {hung:?}");
    Ok(())
}
