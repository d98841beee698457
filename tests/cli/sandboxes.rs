//! Sandboxes from their beginning to their end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::Receiver;
use std::time::Duration;

use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use serde_json::Value;
use snapbox::{assert_data_eq, str};

use crate::world::World;

#[test]
fn sandboxes_come_are_listed_and_go() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(
        world.run(&["ls"])?,
        str![[r#"
exit: 0
--- stdout
ID  SNAPSHOT  STATE  AGE  ENDS IN  VCPUS  MEMORY  PID  BRANCHES

"#]]
    );
    assert_data_eq!(
        world.run(&["fork", "base", "-n", "2", "--ttl", "2h", "--metadata", "job=a"])?,
        str![[r#"
exit: 0
--- stdout
ID
ID
--- stderr
2 ready, after [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["ls"])?,
        str![[r#"
exit: 0
--- stdout
ID                    SNAPSHOT  STATE    AGE  ENDS IN  VCPUS  MEMORY  [..]PID  BRANCHES
ID  base      running   [..]s       [..]      1  64 MiB  [..]         0
ID  base      running   [..]s       [..]      1  64 MiB  [..]         0

"#]]
    );
    assert_eq!(world.stdout(&["ps", "-q", "--metadata", "job=a"])?.lines().count(), 2);
    assert_eq!(world.stdout(&["ls", "-q", "--metadata", "job=b"])?, "");
    let all: Value = serde_json::from_str(&world.stdout(&["ls", "--json"])?)?;
    assert_eq!((&all[1]["state"], &all[1]["metadata"]["job"]), (&"running".into(), &"a".into()));
    assert_data_eq!(
        world.run(&["stats", "--once"])?,
        str![[r#"
exit: 0
--- stdout
ID                    SNAPSHOT  CPU  CPU TIME  [..]PRIVATE  [..]SHARED  [..]DISK  SENT  RECEIVED
ID  base        -  [..] ms [..]
ID  base        -  [..] ms [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["kill", "--all"])?,
        str![[r#"
exit: 0
--- stdout
ID
ID

"#]]
    );
    assert_data_eq!(
        world.run(&["ls", "--all"])?,
        str![[r#"
exit: 0
--- stdout
ID  SNAPSHOT  STATE  AGE  ENDS IN  VCPUS  MEMORY  PID  BRANCHES

"#]]
    );
    Ok(())
}

#[test]
fn one_sandbox_is_shown_stopped_and_taken_back() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    assert_data_eq!(
        world.run(&["inspect", &id])?,
        str![[r#"
exit: 0
--- stdout
id              ID
state           running
snapshot        base
created         20[..]Z
vcpus           1
memory          64 MiB
disk            16 MiB
owner           unix:[..]
pid             [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["pause", &id, "inone"])?,
        str![[r#"
exit: 1
--- stdout
ID                    STATE
ID  paused
--- stderr
forkd: there is no sandbox "inone"
hint: see forkd ls --all

"#]]
    );
    assert_data_eq!(
        world.run(&["resume", &id])?,
        str![[r#"
exit: 0
--- stdout
ID                    STATE
ID  running

"#]]
    );
    assert_data_eq!(
        world.run(&["branch", &id, "--tag", "one", "--wait"])?,
        str![[r#"
exit: 0
--- stdout
one
--- stderr
Paused for [..] ms.

"#]]
    );
    assert_data_eq!(
        world.run(&["rollback", &id, "one"])?,
        str![[r#"
exit: 0
--- stderr
Sandbox ID is back at one.

"#]]
    );
    assert!(world.output(&["logs", &id])?.status.success());
    assert_data_eq!(
        world.run(&["fork", &id])?,
        str![[r#"
exit: 0
--- stdout
ID
--- stderr
1 ready, after [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["kill", &id, "--json"])?,
        str![[r#"
exit: 0
--- stdout
{
  "removed": [
    "ID"
  ]
}

"#]]
    );
    Ok(())
}

#[test]
fn what_has_ended_is_cleaned_up_when_told_so() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(
        world.run(&["cleanup"])?,
        str![[r#"
exit: 0
--- stderr
Nothing to remove.

"#]]
    );
    world.stdout(&["fork", "base", "--ttl", "1"])?;
    world.until("it ends", |world| {
        Ok(world.stdout(&["ls", "-q", "--state", "ended"])?.lines().count() == 1)
    })?;
    assert_eq!(world.stdout(&["ls", "-q"])?, "");
    assert_data_eq!(
        world.run(&["cleanup"])?,
        str![[r#"
exit: 0
--- stdout
sandbox ID
--- stderr
1 would be removed; run forkd cleanup --yes to remove them.

"#]]
    );
    assert_data_eq!(
        world.run(&["cleanup", "--yes"])?,
        str![[r#"
exit: 0
--- stdout
sandbox ID
--- stderr
1 removed.

"#]]
    );
    assert_eq!(world.stdout(&["ls", "-q", "--all"])?, "");
    Ok(())
}

/// The lines of a command that runs until it is killed with this value.
struct Following {
    child: Child,
    lines: Receiver<String>,
}

impl Following {
    fn start(world: &World, arguments: &[&str]) -> Result<Following, Failure> {
        let mut child = world.command(arguments).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().ok_or("no stdout")?;
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Ok(Following { child, lines })
    }

    /// The first line. Nobody knows when the stream is there, and what happens before is not in it: so it happens again and again.
    fn first(&self, happens: impl Fn() -> Result<(), Failure>) -> Result<String, Failure> {
        for _ in 0..100 {
            happens()?;
            if let Ok(line) = self.lines.recv_timeout(Duration::from_millis(200)) {
                return Ok(line);
            }
        }
        Err("no event".into())
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn events_are_printed_as_they_happen() -> Result<(), Failure> {
    let world = World::new()?;
    for (json, says) in [(&[][..], "Z  sandbox"), (&["--json"], r#""event":"sandbox"#)] {
        let events = Following::start(&world, &[&["events"], json].concat())?;
        let line = events.first(|| {
            let id = world.fork("base")?;
            world.stdout(&["kill", &id]).map(drop)
        })?;
        assert!(line.contains(says), "{line}");
    }
    Ok(())
}

#[test]
fn events_of_one_sandbox_are_printed_from_a_cursor_on() -> Result<(), Failure> {
    let world = World::new()?;
    let (id, other) = (world.fork("base")?, world.fork("base")?);
    let of_it = ["events", "--json", "--sandbox", &id];
    let first = Following::start(&world, &of_it)?.first(|| {
        world.stdout(&["pause", &other])?;
        world.stdout(&["resume", &other])?;
        world.stdout(&["pause", &id])?;
        world.stdout(&["resume", &id]).map(drop)
    })?;
    let first: Value = serde_json::from_str(&first)?;
    assert_eq!(first["id"], id);
    // Nobody listens to these.
    world.stdout(&["kill", &other])?;
    world.stdout(&["kill", &id])?;
    let cursor = first["cursor"].as_str().ok_or("no cursor")?;
    let events = Following::start(&world, &[&of_it[..], &["--after", cursor]].concat())?;
    loop {
        let event: Value = serde_json::from_str(&events.lines.recv_timeout(PATIENCE)?)?;
        assert_eq!(event["id"], id, "{event}");
        if event["event"] == "sandbox_removed" {
            return Ok(());
        }
    }
}

#[test]
fn the_daemon_answers_a_ping() -> Result<(), Failure> {
    let world = World::new()?;
    assert_data_eq!(
        world.run(&["ping"])?,
        str![[r#"
exit: 0
--- stdout
forkd 0.1.0 at unix://HOME/forkd.sock answers in [..]

"#]]
    );
    let answer: Value = serde_json::from_str(&world.stdout(&["ping", "--json"])?)?;
    assert_eq!(answer["api"], "v1");
    Ok(())
}

/// Without a network there is nothing to limit. That a limit holds is shown where there are networks.
#[test]
fn bandwidth_is_of_those_with_a_network() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    assert_data_eq!(
        world.run(&["bandwidth", &id])?,
        str![[r#"
exit: 0
--- stdout
no network

"#]]
    );
    for size in ["8M", "default"] {
        let refused = world.run(&["bandwidth", &id, size])?;
        assert!(
            refused.contains("exit: 1") && refused.contains("hint: omit the options that need a network"),
            "{refused}"
        );
    }
    assert_data_eq!(
        world.run(&["bandwidth", &id, "fast"])?,
        str![[r#"
exit: 2
--- stderr
error: invalid value 'fast' for '[SIZE]': expected a size such as 4G, 512M or 2048 (MiB)

For more information, try '--help'.

"#]]
    );
    Ok(())
}
