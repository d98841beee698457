//! Snapshots that go from one daemon to another: in a file, and through a registry.

use std::fs;
use std::path::PathBuf;

use forkd_api::error::ErrorCode;
use forkd_api::snapshot::{PushedSnapshot, Snapshot, SnapshotStatus};
use forkd_tests::binaries;
use forkd_tests::docker_registry::DockerRegistry;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::PATIENCE;
use rustix::process::Signal;
use serde_json::json;

use crate::world::World;

/// A daemon with `base`, and `one`, a branch of a sandbox whose guest has kept a number in its memory and on its disk.
fn sender() -> Result<World, Failure> {
    let world = World::with_guest(&ticking::elf(), &[])?;
    let sandbox = world.fork("base", 1)?.remove(0);
    Words::of(world.sandbox(&sandbox.id)?.pid.ok_or("no process")?, PATIENCE)?.keep(7, PATIENCE)?;
    let wanted = json!({ "tag": "one", "wait": true });
    world.tell(&format!("POST /v1/sandboxes/{}/branch", sandbox.id), wanted)?.parsed::<Snapshot>(201)?;
    Ok(world)
}

/// What a fork has in its memory, which must be what it reads from its disk.
fn number_in(world: &World, tag: &str) -> Result<u64, Failure> {
    let sandbox = world.fork(tag, 1)?.remove(0);
    let words = Words::of(world.sandbox(&sandbox.id)?.pid.ok_or("no process")?, PATIENCE)?;
    words.round(words.ticks()?, PATIENCE)?;
    assert_eq!(words.kept()?, words.read()?);
    words.kept()
}

fn file(world: &World) -> PathBuf {
    world.home().join("snapshot.tar")
}

#[test]
fn a_snapshot_goes_in_a_file() -> Result<(), Failure> {
    let (from, to) = (sender()?, World::new()?);
    let path = file(&from);
    let path = path.to_str().ok_or("no path")?;
    from.forkd(&["snapshot", "save", "one", "-o", path])?;
    assert!(fs::metadata(path)?.len() > 1000);
    let loaded: Snapshot = serde_json::from_str(&to.forkd(&["snapshot", "load", path, "--json"])?)?;
    assert_eq!((loaded.tag.as_str(), loaded.status), ("one", SnapshotStatus::Ready));
    assert_eq!(loaded.branched_from, None, "no sandbox of this host");
    assert_eq!(number_in(&to, "one")?, 7);
    // Under the old names of both verbs, and with another name.
    from.forkd(&["snapshot", "pack", "base", "-o", path])?;
    to.forkd(&["snapshot", "unpack", path, "--tag", "other"])?;
    assert_eq!(to.snapshot("other")?.parent, None);

    // What is not an archive, or only a part of one, leaves nothing.
    let before = to.snapshots()?.len();
    let bytes = fs::read(path)?;
    for (number, bad) in [&b"nothing of the kind"[..], &bytes[..bytes.len() / 2], b""].into_iter().enumerate()
    {
        let answer = to.upload("", &format!("POST /v1/snapshots/load?tag=bad-{number}"), bad)?;
        answer.error(ErrorCode::Malformed)?;
    }
    assert_eq!(to.snapshots()?.len(), before);
    let taken = to.upload("", "POST /v1/snapshots/load?tag=one", &bytes)?;
    taken.error(ErrorCode::NameTaken)?;
    Ok(())
}

#[test]
fn a_snapshot_goes_through_a_registry() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, to) = (sender()?, World::new()?);
    let reference = |tag: &str| format!("{}/team/app:{tag}", registry.address);
    from.forkd(&["snapshot", "push", "base", &reference("base")])?;
    // What somebody's sandbox had in its memory is not sent by accident.
    let wanted = json!({ "reference": reference("one") });
    from.refuses(ErrorCode::WrongState, "POST /v1/snapshots/one/push", wanted)?;
    let before = registry.stored_bytes()?;
    let push = || -> Result<PushedSnapshot, Failure> {
        let told = from.forkd(&["snapshot", "push", "one", &reference("one"), "--yes", "--json"])?;
        Ok(serde_json::from_str(&told)?)
    };
    let pushed = push()?;
    assert!(pushed.reference.contains("/team/app@sha256:"), "{pushed:?}");
    assert!(pushed.present_bytes > 0, "the base is there already: {pushed:?}");
    assert!(registry.stored_bytes()? - before < 2 * pushed.sent_bytes + 20_000, "{pushed:?}");
    let again = push()?;
    assert!(again.sent_bytes < 10_000 && again.present_bytes > 0, "{again:?}");

    let pulled = to.forkd(&["snapshot", "pull", &reference("one"), "--tag", "pulled", "--json"])?;
    let pulled: Snapshot = serde_json::from_str(&pulled)?;
    assert_eq!((pulled.tag.as_str(), pulled.status), ("pulled", SnapshotStatus::Ready));
    assert_eq!(number_in(&to, "pulled")?, 7);
    // From there it goes on, in the blobs that it came in.
    let told = to.forkd(&["snapshot", "push", "pulled", &reference("again"), "--json"])?;
    let pushed: PushedSnapshot = serde_json::from_str(&told)?;
    assert!(pushed.sent_bytes < 10_000, "{pushed:?}");

    let none = json!({ "reference": reference("none") });
    to.refuses(ErrorCode::UpstreamFailed, "POST /v1/snapshots/pull", none)?;
    to.refuses(ErrorCode::Malformed, "POST /v1/snapshots/pull", json!({ "reference": "no reference" }))?;
    to.refuses(ErrorCode::NotFound, "POST /v1/snapshots/none/push", json!({ "reference": reference("x") }))?;
    Ok(())
}

/// What a token may have holds for what arrives, too.
#[test]
fn a_snapshot_that_arrives_counts() -> Result<(), Failure> {
    let (from, mut to) = (sender()?, World::new()?);
    let path = file(&from);
    let path = path.to_str().ok_or("no path")?;
    from.forkd(&["snapshot", "save", "one", "-o", path])?;
    let token = to.token_with("few", &["--scope", "admin", "--max-snapshots", "1"])?;
    to.end(Signal::TERM)?;
    to.start(&["--listen", "127.0.0.1:0"])?;
    let address = format!("http://{}", to.address()?);
    let load = |tag: &str| {
        let arguments = ["snapshot", "load", path, "--tag", tag, "--address", &address];
        binaries::forkd(to.home(), &arguments).env("FORKD_TOKEN", &token).output()
    };
    let first = load("first")?;
    assert!(first.status.success(), "{}", binaries::transcript(&first));
    let second = binaries::transcript(&load("second")?);
    assert!(second.contains("snapshots"), "{second}");
    assert!(to.snapshot("second").is_err());
    Ok(())
}
