//! No daemon, the wrong one, and what a daemon refuses.

use std::fs;

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::world::{Home, World};

#[test]
fn without_a_daemon_it_is_said_how_to_start_one() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(home.run(&["ls"])?, str![]);
    assert_data_eq!(home.run(&["kill", "i", "--json"])?, str![]);
    Ok(())
}

#[test]
fn an_address_where_nobody_is_is_named() -> Result<(), Failure> {
    let home = Home::new()?;
    let address = format!("unix://{}/none", home.path().display());
    assert_data_eq!(home.run(&["ls", "--address", &address])?, str![]);
    assert_data_eq!(home.run(&["ping", "--address", "http://127.0.0.1:1"])?, str![]);
    let outcome = home.command(&["ls"]).env("FORKD_URL", "nowhere").output()?;
    assert_data_eq!(crate::outcome::outcome(&outcome, home.path()), str![]);
    Ok(())
}

#[test]
fn tokens_that_are_none_are_named() -> Result<(), Failure> {
    let home = Home::new()?;
    let file = home.path().join("token");
    let file = file.to_string_lossy();
    assert_data_eq!(home.run(&["ls", "--token-file", &file])?, str![]);
    fs::write(&*file, "two words")?;
    assert_data_eq!(home.run(&["ls", "--token-file", &file])?, str![]);
    Ok(())
}

#[test]
fn what_is_not_there_is_named() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(world.run(&["inspect", "nothing"])?, str![]);
    assert_data_eq!(world.run(&["fork", "nothing"])?, str![]);
    assert_data_eq!(world.run(&["kill", "inone", "iother"])?, str![]);
    assert_data_eq!(world.run(&["pause", "inone"])?, str![]);
    assert_data_eq!(world.run(&["exec", "inone", "--", "true"])?, str![]);
    assert_data_eq!(world.run(&["eval", "inone", "1"])?, str![]);
    assert_data_eq!(world.run(&["logs", "inone"])?, str![]);
    assert_data_eq!(world.run(&["stats", "inone"])?, str![]);
    assert_data_eq!(world.run(&["branch", "inone"])?, str![]);
    assert_data_eq!(world.run(&["rollback", "inone", "tag"])?, str![]);
    assert_data_eq!(world.run(&["snapshot", "inspect", "nothing"])?, str![]);
    assert_data_eq!(world.run(&["snapshot", "rm", "nothing"])?, str![]);
    assert_data_eq!(world.run(&["run", "nothing", "--", "true"])?, str![]);
    assert_data_eq!(world.run(&["snapshot", "nothing"])?, str![]);
    assert_data_eq!(world.run(&["exec", "../../snapshots", "--", "true"])?, str![]);
    Ok(())
}

#[test]
fn what_cannot_be_in_this_state_is_refused_with_a_hint() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    assert_data_eq!(world.run(&["exec", &id, "--", "true"])?, str![]);
    assert_data_eq!(world.run(&["exec", &id, "--json", "--", "true"])?, str![]);
    assert_data_eq!(world.run(&["eval", &id, "1"])?, str![]);
    assert_data_eq!(world.run(&["shell", &id])?, str![]);
    assert_data_eq!(world.run(&["branch", &id, "--tag", "base"])?, str![]);
    assert_data_eq!(world.run(&["branch", &id, "--tag", "A B"])?, str![]);
    assert_data_eq!(world.run(&["rollback", &id, "base"])?, str![]);
    assert_data_eq!(world.run(&["fork", "base", "-n", "0"])?, str![]);
    assert_data_eq!(world.run(&["run", "base", "--memory", "1G"])?, str![]);
    Ok(())
}

#[test]
fn a_run_that_fails_leaves_no_sandbox() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(world.run(&["run", "base", "--", "true"])?, str![]);
    assert_eq!(world.stdout(&["ls", "--all", "--quiet"])?, "");
    Ok(())
}

#[test]
fn limits_of_the_daemon_are_passed_on() -> Result<(), Failure> {
    let world = World::with(&["--listen", "none", "--max-sandboxes", "3"])?;
    assert_data_eq!(world.run(&["fork", "base", "-n", "4"])?, str![]);
    Ok(())
}
