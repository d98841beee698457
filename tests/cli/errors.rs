//! No daemon, the wrong one, and what a daemon refuses.

use std::fs;

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::world::{Home, World};

#[test]
fn without_a_daemon_it_is_said_how_to_start_one() -> Result<(), Failure> {
    let home = Home::new()?;
    assert_data_eq!(
        home.run(&["ls"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no daemon is running: no process listens at HOME/forkd.sock, and machine default runs none
hint: start one with forkd serve; --address names another host's

"#]]
    );
    assert_data_eq!(
        home.run(&["kill", "i", "--json"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no daemon is running: no process listens at HOME/forkd.sock, and machine default runs none
hint: start one with forkd serve; --address names another host's

"#]]
    );
    Ok(())
}

#[test]
fn an_address_where_nobody_is_is_named() -> Result<(), Failure> {
    let home = Home::new()?;
    let address = format!("unix://{}/none", home.path().display());
    assert_data_eq!(
        home.run(&["ls", "--address", &address])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot reach the daemon at unix://HOME/none: No such file or directory (os error 2)
hint: is it running? forkd serve starts one; --address or FORKD_ADDRESS names another

"#]]
    );
    assert_data_eq!(
        home.run(&["ping", "--address", "http://127.0.0.1:1"])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot reach the daemon at http://127.0.0.1:1: Connection refused (os error 111)
hint: is it running? forkd serve starts one; --address or FORKD_ADDRESS names another

"#]]
    );
    let outcome = home.command(&["ls"]).env("FORKD_URL", "nowhere").output()?;
    assert_data_eq!(
        crate::outcome::outcome(&outcome, home.path()),
        str![[r#"
exit: 2
--- stderr
forkd: FORKD_URL is not a valid address: expected unix:///path, http://host:port or https://host:port

"#]]
    );
    Ok(())
}

#[test]
fn tokens_that_are_none_are_named() -> Result<(), Failure> {
    let home = Home::new()?;
    let file = home.path().join("token");
    let file = file.to_string_lossy();
    assert_data_eq!(
        home.run(&["ls", "--token-file", &file])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot read the token HOME/token: No such file or directory (os error 2)

"#]]
    );
    fs::write(&*file, "two words")?;
    assert_data_eq!(
        home.run(&["ls", "--token-file", &file])?,
        str![[r#"
exit: 1
--- stderr
forkd: HOME/token has no token: expected one word

"#]]
    );
    Ok(())
}

#[test]
fn what_is_not_there_is_named() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(
        world.run(&["inspect", "nothing"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no snapshot or sandbox is named nothing
hint: see forkd snapshot ls and forkd ls --all

"#]]
    );
    assert_data_eq!(
        world.run(&["fork", "nothing"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no snapshot or sandbox is named nothing
hint: see forkd snapshot ls and forkd ls --all

"#]]
    );
    assert_data_eq!(
        world.run(&["kill", "inone", "iother"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no sandbox "inone"
hint: see forkd ls --all
forkd: there is no sandbox "iother"
hint: see forkd ls --all

"#]]
    );
    let no_sandbox = world.run(&["pause", "inone"])?;
    assert_data_eq!(
        no_sandbox.clone(),
        str![[r#"
exit: 1
--- stderr
forkd: there is no sandbox "inone"
hint: see forkd ls --all

"#]]
    );
    for command in [
        &["exec", "inone", "--", "true"][..],
        &["eval", "inone", "1"],
        &["logs", "inone"],
        &["stats", "inone"],
        &["branch", "inone"],
        &["rollback", "inone", "tag"],
    ] {
        assert_eq!(world.run(command)?, no_sandbox, "{command:?}");
    }
    assert_data_eq!(
        world.run(&["snapshot", "inspect", "nothing"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no snapshot "nothing"
hint: see forkd snapshot ls

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "nothing"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no snapshot "nothing"
hint: see forkd snapshot ls

"#]]
    );
    assert_data_eq!(
        world.run(&["run", "nothing", "--", "true"])?,
        str![[r#"
exit: 1
--- stderr
forkd: no snapshot or image is named nothing
hint: forkd run --pull gets an image from a registry; forkd image pull, build and import make others

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "nothing"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no image "nothing"
hint: see forkd image ls

"#]]
    );
    assert_data_eq!(
        world.run(&["exec", "../../snapshots", "--", "true"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no sandbox "../../snapshots"
hint: see forkd ls --all

"#]]
    );
    Ok(())
}

#[test]
fn what_cannot_be_in_this_state_is_refused_with_a_hint() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    assert_data_eq!(
        world.run(&["exec", &id, "--", "true"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the sandbox has no guest agent, which this request needs

"#]]
    );
    assert_data_eq!(
        world.run(&["exec", &id, "--json", "--", "true"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the sandbox has no guest agent, which this request needs

"#]]
    );
    assert_data_eq!(
        world.run(&["eval", &id, "1"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the sandbox has no guest agent, which this request needs

"#]]
    );
    assert_data_eq!(
        world.run(&["shell", &id])?,
        str![[r#"
exit: 1
--- stderr
forkd: stdin is not a terminal
hint: use forkd exec to run a command without a terminal

"#]]
    );
    assert_data_eq!(
        world.run(&["branch", &id, "--tag", "base"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is a snapshot base already
hint: choose another tag, or remove the snapshot first

"#]]
    );
    assert_data_eq!(
        world.run(&["branch", &id, "--tag", "A B"])?,
        str![[r#"
exit: 1
--- stderr
forkd: "A B" is not a tag: use 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit

"#]]
    );
    assert_data_eq!(
        world.run(&["rollback", &id, "base"])?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot base is not a branch of sandbox ID
hint: forkd inspect lists its branches

"#]]
    );
    assert_data_eq!(
        world.run(&["fork", "base", "-n", "0"])?,
        str![[r#"
exit: 1
--- stderr
forkd: n is 0, expected 1 to 1000

"#]]
    );
    assert_data_eq!(
        world.run(&["run", "base", "--memory", "1G"])?,
        str![[r#"
exit: 1
--- stderr
forkd: base is a snapshot: its vCPUs, memory, disk and kernel cannot be changed
hint: make another with: forkd snapshot IMAGE

"#]]
    );
    Ok(())
}

#[test]
fn a_run_that_fails_leaves_no_sandbox() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(
        world.run(&["run", "base", "--", "true"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the sandbox has no guest agent, which this request needs

"#]]
    );
    assert_eq!(world.stdout(&["ls", "--all", "--quiet"])?, "");
    Ok(())
}

#[test]
fn limits_of_the_daemon_are_passed_on() -> Result<(), Failure> {
    let world = World::with(&["--listen", "none", "--max-sandboxes", "3"])?;
    assert_data_eq!(
        world.run(&["fork", "base", "-n", "4"])?,
        str![[r#"
exit: 1
--- stderr
forkd: sandbox limit exceeded: 0 running, 4 requested, limit 3
hint: remove some first, or start the daemon with a higher --max-sandboxes

"#]]
    );
    Ok(())
}
