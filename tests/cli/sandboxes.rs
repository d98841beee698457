//! Sandboxes from their beginning to their end.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use forkd_tests::engine::process::Failure;
use serde_json::Value;
use snapbox::{assert_data_eq, str};

use crate::world::World;

#[test]
fn sandboxes_come_are_listed_and_go() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(world.run(&["ls"])?, str![]);
    assert_data_eq!(world.run(&["fork", "base", "-n", "2", "--ttl", "2h", "--metadata", "job=a"])?, str![]);
    assert_data_eq!(world.run(&["ls"])?, str![]);
    assert_eq!(world.stdout(&["ps", "-q", "--metadata", "job=a"])?.lines().count(), 2);
    assert_eq!(world.stdout(&["ls", "-q", "--metadata", "job=b"])?, "");
    let all: Value = serde_json::from_str(&world.stdout(&["ls", "--json"])?)?;
    assert_eq!((&all[1]["state"], &all[1]["metadata"]["job"]), (&"running".into(), &"a".into()));
    assert_data_eq!(world.run(&["stats", "--once"])?, str![]);
    assert_data_eq!(world.run(&["kill", "--all"])?, str![]);
    assert_data_eq!(world.run(&["ls", "--all"])?, str![]);
    Ok(())
}

#[test]
fn one_sandbox_is_shown_stopped_and_taken_back() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    assert_data_eq!(world.run(&["inspect", &id])?, str![]);
    assert_data_eq!(world.run(&["pause", &id, "inone"])?, str![]);
    assert_data_eq!(world.run(&["resume", &id])?, str![]);
    assert_data_eq!(world.run(&["branch", &id, "--tag", "one", "--wait"])?, str![]);
    assert_data_eq!(world.run(&["rollback", &id, "one"])?, str![]);
    assert_data_eq!(world.run(&["logs", &id])?, str![]);
    assert_data_eq!(world.run(&["fork", &id])?, str![]);
    assert_data_eq!(world.run(&["kill", &id, "--json"])?, str![]);
    Ok(())
}

#[test]
fn what_has_ended_is_cleaned_up_when_told_so() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(world.run(&["cleanup"])?, str![]);
    world.stdout(&["fork", "base", "--ttl", "1"])?;
    world.until("it ends", |world| {
        Ok(world.stdout(&["ls", "-q", "--state", "ended"])?.lines().count() == 1)
    })?;
    assert_eq!(world.stdout(&["ls", "-q"])?, "");
    assert_data_eq!(world.run(&["cleanup"])?, str![]);
    assert_data_eq!(world.run(&["cleanup", "--yes"])?, str![]);
    assert_eq!(world.stdout(&["ls", "-q", "--all"])?, "");
    Ok(())
}

#[test]
fn events_are_printed_as_they_happen() -> Result<(), Failure> {
    let world = World::new()?;
    for (json, says) in [(false, "Z  sandbox"), (true, r#""event":"sandbox""#)] {
        let mut arguments = vec!["events"];
        if json {
            arguments.push("--json");
        }
        let mut events = world.command(&arguments).stdout(Stdio::piped()).spawn()?;
        let stdout = events.stdout.take().ok_or("no stdout")?;
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        // Nobody knows when the stream is there: what happens before is not in it.
        let mut line = None;
        for _ in 0..100 {
            let id = world.fork("base")?;
            world.stdout(&["kill", &id])?;
            line = lines.recv_timeout(std::time::Duration::from_millis(200)).ok();
            if line.is_some() {
                break;
            }
        }
        events.kill()?;
        events.wait()?;
        let line = line.ok_or("no event")?;
        assert!(line.contains(says), "{line}");
    }
    Ok(())
}

#[test]
fn the_daemon_answers_a_ping() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(world.run(&["ping"])?, str![]);
    let answer: Value = serde_json::from_str(&world.stdout(&["ping", "--json"])?)?;
    assert_eq!(answer["api"], "v1");
    Ok(())
}
