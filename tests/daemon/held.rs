//! A daemon that ends with its last holder (`forkd hold`), and the clients that start one: whatever crashes, nothing is left.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use forkd_api::sandbox::{CreatedSandboxes, Sandbox, SandboxList};
use forkd_api::snapshot::SnapshotList;
use forkd_net::plan::GUEST_MAC;
use forkd_proto::control::Net;
use forkd_tests::alone::{self, make_uplink};
use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::{self, PATIENCE, lives};
use forkd_tests::held::{HeldHome, Holder};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::client;
use crate::network;
use crate::sdk::COMPILED;

fn kill(pid: i32) -> Result<(), Failure> {
    Ok(kill_process(Pid::from_raw(pid).ok_or("no process")?, Signal::KILL)?)
}

fn until(what: &str, mut holds: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let begun = Instant::now();
    while !holds()? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("not in time: {what}").into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn sandbox(home: &HeldHome) -> Result<Sandbox, Failure> {
    let body = json!({ "snapshot_tag": "base" });
    let made: CreatedSandboxes =
        client::send(&home.socket(), "POST /v1/sandboxes", "", Some(&body))?.parsed(201)?;
    Ok(made.sandboxes.into_iter().next().ok_or("no sandbox")?)
}

fn sandboxes(home: &HeldHome) -> Result<Vec<Sandbox>, Failure> {
    Ok(client::send(&home.socket(), "GET /v1/sandboxes", "", None)?.parsed::<SandboxList>(200)?.sandboxes)
}

#[test]
fn the_last_holder_takes_the_daemon_with_it() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let mut first = home.hold()?;
    let line = first.line()?;
    assert_eq!(line["url"], format!("unix://{}", home.socket().display()));
    assert_eq!((line["private"].as_bool(), line.get("token")), (Some(true), None));
    let second = home.hold()?.ready()?;
    let pid = home.daemon_pid()?;
    assert!(sandbox(&home)?.pid.is_some_and(lives));
    // Only the end of stdin counts.
    first.write("nothing in particular\n")?;
    assert!(first.release()?.success());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(home.daemon_pid()?, pid, "somebody else holds it");
    assert_eq!(sandboxes(&home)?.len(), 1);
    assert!(second.release()?.success());
    home.until_nothing_is_left()?;
    // Its snapshots are there for the next one.
    let third = home.hold()?.ready()?;
    let known = client::send(&home.socket(), "GET /v1/snapshots", "", None)?.parsed::<SnapshotList>(200)?;
    assert_eq!(known.snapshots.iter().map(|snapshot| snapshot.tag.as_str()).collect::<Vec<_>>(), ["base"]);
    assert!(sandboxes(&home)?.is_empty());
    sandbox(&home)?;
    third.release()?;
    home.until_nothing_is_left()?;
    Ok(())
}

#[test]
fn a_branch_that_is_being_written_is_on_disk_when_the_daemon_has_gone() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let holder = home.hold()?.ready()?;
    let parent = sandbox(&home)?;
    let branch = json!({ "tag": "kept", "wait": false });
    let path = format!("POST /v1/sandboxes/{}/branch", parent.id);
    assert_eq!(client::send(&home.socket(), &path, "", Some(&branch))?.status, 201);
    holder.release()?;
    home.until_nothing_is_left()?;
    assert_eq!(tiny::names(&home.root(), "snapshots"), ["base", "kept"]);
    Ok(())
}

#[test]
fn whoever_is_killed_nothing_is_left() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let holder = home.hold()?.ready()?;
    sandbox(&home)?;
    holder.kill()?;
    home.until_nothing_is_left()?;

    // A daemon that is killed is started again while somebody holds it, and has its sandboxes.
    let holder = home.hold()?.ready()?;
    let before = sandbox(&home)?;
    let pid = home.daemon_pid()?;
    kill(pid)?;
    until("another daemon", || Ok(home.daemon_pid().is_ok_and(|now| now != pid)))?;
    until("its sandbox", || {
        Ok(sandboxes(&home).is_ok_and(|known| known.iter().any(|it| it.id == before.id)))
    })?;
    assert!(before.pid.is_some_and(lives));

    // Killed when its holder goes, it leaves what another one ends.
    kill(home.daemon_pid()?)?;
    assert!(holder.release()?.success());
    home.until_nothing_is_left()?;
    assert!(!before.pid.is_some_and(lives));

    // Both at once: what is left ends with the next one.
    let holder = home.hold()?.ready()?;
    let lost = sandbox(&home)?;
    let pid = home.daemon_pid()?;
    kill_process(Pid::from_raw(holder.pid()).ok_or("no process")?, Signal::STOP)?;
    kill(pid)?;
    holder.kill()?;
    assert!(lost.pid.is_some_and(lives));
    home.hold()?.ready()?.release()?;
    home.until_nothing_is_left()?;
    assert!(!lost.pid.is_some_and(lives));
    Ok(())
}

#[test]
fn a_daemon_that_crashes_again_and_again_is_given_up() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let holder = home.hold()?.ready()?;
    let mut last = 0;
    for _ in 0..4 {
        until("a daemon", || Ok(home.daemon_pid().is_ok_and(|pid| pid != last)))?;
        last = home.daemon_pid()?;
        kill(last)?;
    }
    let (status, said) = holder.ended()?;
    assert!(!status.success() && said.contains("keeps crashing"), "{status}: {said}");
    home.until_nothing_is_left()?;
    Ok(())
}

#[test]
fn a_daemon_that_is_told_to_stop_ends_everything() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let holder = home.hold()?.ready()?;
    sandbox(&home)?;
    let pid = Pid::from_raw(home.daemon_pid()?).ok_or("no process")?;
    kill_process(pid, Signal::TERM)?;
    let (status, said) = holder.ended()?;
    assert!(!status.success() && said.contains("was stopped"), "{status}: {said}");
    home.until_nothing_is_left()?;
    Ok(())
}

#[test]
fn many_at_once_share_one_daemon() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let holders: Vec<Holder> = (0..8).map(|_| home.hold()).collect::<Result<_, _>>()?;
    let ready: Vec<Holder> = holders.into_iter().map(Holder::ready).collect::<Result<_, _>>()?;
    assert_eq!(home.log().matches("listening").count(), 1, "{}", home.log());
    let pid = home.daemon_pid()?;
    for holder in ready {
        assert_eq!(home.daemon_pid()?, pid);
        holder.release()?;
    }
    home.until_nothing_is_left()?;
    Ok(())
}

#[test]
fn one_that_comes_when_the_last_goes_has_a_daemon() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let mut holder = home.hold()?.ready()?;
    for round in 0..6 {
        let next = home.hold()?;
        // At another moment of its start each time.
        std::thread::sleep(Duration::from_millis(4 * round));
        holder.release()?;
        holder = next.ready()?;
        std::thread::sleep(Duration::from_millis(50));
        sandbox(&home)?;
    }
    holder.release()?;
    home.until_nothing_is_left()?;
    Ok(())
}

/// Holders that end lock a keeper's file for a moment.
#[test]
fn who_looks_for_a_keeper_is_not_taken_for_one() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let directory = home.path().join("private");
    fs::create_dir_all(&directory)?;
    let looking = File::create(directory.join("keeper"))?;
    looking.lock()?;
    let holder = home.hold()?;
    std::thread::sleep(Duration::from_millis(300));
    drop(looking);
    holder.ready()?.release()?;
    home.until_nothing_is_left()?;
    Ok(())
}

#[test]
fn a_client_that_goes_before_the_daemon_answers_leaves_none() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    for pause in [0, 5, 20, 60] {
        let holder = home.hold()?;
        std::thread::sleep(Duration::from_millis(pause));
        holder.kill()?;
        let holder = home.hold()?;
        std::thread::sleep(Duration::from_millis(pause));
        holder.release()?;
        home.until_nothing_is_left()?;
    }
    Ok(())
}

#[test]
fn an_ordinary_daemon_is_used_and_left_alone() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let mut daemon = ordinary(&home)?;
    let mut holder = home.hold()?;
    let line = holder.line()?;
    assert_eq!((line["private"].as_bool(), line.get("log")), (Some(false), None));
    let (status, _) = holder.ended()?;
    assert!(status.success());
    let kept = sandbox(&home)?;
    // Sandboxes that it leaves when it stops are not a private daemon's to end.
    kill_process(Pid::from_child(&daemon), Signal::TERM)?;
    daemon.wait()?;
    let mut holder = home.hold()?;
    let line = holder.line()?;
    let said = line["error"].as_str().unwrap_or_default().to_owned();
    assert!(said.contains("1 sandboxes of a stopped daemon are still running"), "{line}");
    assert!(!holder.ended()?.0.success());
    assert!(kept.pid.is_some_and(lives));
    assert!(home.socket().parent().is_some_and(|home| !home.join("forkd.sock").exists()));

    // The other way round: what a killed private daemon has left, an ordinary one takes over.
    let mut daemon = ordinary(&home)?;
    client::send(&home.socket(), &format!("DELETE /v1/sandboxes/{}", kept.id), "", None)?;
    kill_process(Pid::from_child(&daemon), Signal::TERM)?;
    daemon.wait()?;
    let holder = home.hold()?.ready()?;
    let kept = sandbox(&home)?;
    let pid = home.daemon_pid()?;
    kill_process(Pid::from_raw(holder.pid()).ok_or("no process")?, Signal::STOP)?;
    kill(pid)?;
    holder.kill()?;
    let mut daemon = ordinary(&home)?;
    assert_eq!(home.hold()?.line()?["private"], false);
    assert_eq!(sandboxes(&home)?.first().map(|sandbox| &sandbox.id), Some(&kept.id));
    client::send(&home.socket(), &format!("DELETE /v1/sandboxes/{}", kept.id), "", None)?;
    kill_process(Pid::from_child(&daemon), Signal::TERM)?;
    daemon.wait()?;
    Ok(())
}

/// `forkd serve`.
fn ordinary(home: &HeldHome) -> Result<Child, Failure> {
    let mut command = Command::new(home.program());
    home.environment(command.args(["serve", "--listen", "none"]));
    let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    until("the daemon answers", || Ok(sandboxes(home).is_ok()))?;
    Ok(daemon)
}

#[test]
fn what_fails_is_said_on_the_line() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let mut holder = home.hold_with(|command| {
        command.env("FORKD_CGROUP", "/no/such/cgroup");
    })?;
    let line = holder.line()?;
    let said = line["error"].as_str().unwrap_or_default();
    assert!(said.starts_with("the daemon did not start") && said.contains("/no/such/cgroup"), "{line}");
    assert!(!holder.ended()?.0.success());
    home.hold()?.ready()?.release()?;
    home.until_nothing_is_left()?;
    Ok(())
}

#[test]
fn only_a_holder_starts_a_private_daemon() -> Result<(), Failure> {
    let home = HeldHome::new()?;
    for arguments in [&["serve", "--private", "--listen", "none"][..], &["hold", "--keep-machine", "default"]]
    {
        let mut command = Command::new(home.program());
        home.environment(command.args(arguments));
        let output = command.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("started by forkd hold only"), "{said}");
    }
    Ok(())
}

#[test]
fn networks_and_cgroups_go_with_it() -> Result<(), Failure> {
    network::alone("held::alone_networks_and_cgroups_go_with_it")
}

#[test]
#[ignore = "it wants namespaces of its own"]
fn alone_networks_and_cgroups_go_with_it() -> Result<(), Failure> {
    make_uplink()?;
    let home = HeldHome::with(alone::networking(), |base| {
        base.shape.devices.net = Some(Net { mac: GUEST_MAC, mtu: None });
        Ok(())
    })?;
    let cgroup = cgroup();
    let holder = home.hold_with(|command| {
        command.env("FORKD_NETWORK", "required");
        if let Some(cgroup) = &cgroup {
            command.env("FORKD_CGROUP", cgroup);
        }
    })?;
    let holder = holder.ready()?;
    let made = sandbox(&home)?;
    assert!(made.pid.is_some_and(lives));
    assert!(!alone::networks().0.is_empty());
    assert!(cgroup.as_ref().is_none_or(|path| path.join(format!("sandbox-{}", made.id)).is_dir()));
    holder.kill()?;
    home.until_nothing_is_left()?;
    assert_eq!(alone::networks(), (vec![], vec![]));
    assert!(cgroup.is_none_or(|path| !path.exists()));
    Ok(())
}

/// A cgroup for this test, where there can be one.
fn cgroup() -> Option<PathBuf> {
    let mount = forkd_host::cgroup::mount_point()?;
    let given = std::fs::read_to_string(mount.join("cgroup.controllers")).ok()?;
    let has_all =
        ["memory", "cpu", "io", "pids"].iter().all(|name| given.split_whitespace().any(|it| it == *name));
    has_all.then(|| mount.join(format!("forkd-held-{}", std::process::id())))
}

const PYTHON: &str = r#"
import time
from forkd import Sandbox
sandbox = Sandbox.create("base")
print(sandbox.id, flush=True)
time.sleep(600)
"#;
const ASYNCHRONOUS: &str = r#"
import asyncio
from forkd import AsyncSandbox
async def main():
    sandbox = await AsyncSandbox.create("base")
    print(sandbox.id, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"#;
const TYPESCRIPT: &str = r#"
import { Sandbox } from "forkd";
const sandbox = await Sandbox.create("base");
console.log(sandbox.id);
setInterval(() => {}, 1000);
"#;
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/python/with-tools");
const TYPESCRIPT_TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../sdk/typescript/with-tools");

/// Has a client make a sandbox, kills the client, and waits until nothing is left. Another client beside it is left alone.
fn killed_client(client: impl Fn() -> Command) -> Result<(), Failure> {
    let home = HeldHome::new()?;
    let start = || -> Result<(Child, String), Failure> {
        let mut command = client();
        home.environment(&mut command);
        let mut child = command.env("FORKD_AUTOSTART", "1").stdout(Stdio::piped()).spawn()?;
        let mut id = String::new();
        BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut id)?;
        Ok((child, id.trim().to_owned()))
    };
    let (mut first, id) = start()?;
    let (mut second, other) = start()?;
    let known = sandboxes(&home)?;
    let mut ids: Vec<&str> = known.iter().map(|sandbox| sandbox.id.as_str()).collect();
    ids.sort_unstable();
    let mut expected = [id.as_str(), other.as_str()];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    first.kill()?;
    first.wait()?;
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(sandboxes(&home)?.len(), 2, "the other client has the daemon");
    second.kill()?;
    second.wait()?;
    home.until_nothing_is_left()?;
    Ok(())
}

#[test]
fn a_killed_python_client_leaves_nothing() -> Result<(), Failure> {
    for code in [PYTHON, ASYNCHRONOUS] {
        killed_client(|| {
            let mut command = Command::new(TOOLS);
            command.args(["python", "-c", code]);
            command
        })?;
    }
    Ok(())
}

#[test]
fn a_killed_typescript_client_leaves_nothing() -> Result<(), Failure> {
    let _alone = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let built = Command::new(TYPESCRIPT_TOOLS).args(["./test", "--only-build"]).output()?;
    assert!(built.status.success(), "{}", binaries::transcript(&built));
    killed_client(|| {
        let mut command = Command::new(TYPESCRIPT_TOOLS);
        let script = "cd \"$FORKD_TYPESCRIPT/out\" && exec node --input-type=module -e \"$0\"";
        command.args(["sh", "-c", script, TYPESCRIPT]);
        command
    })
}
