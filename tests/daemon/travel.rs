//! Snapshots that go from one daemon to another: in a file, and through a registry.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use forkd_api::error::ErrorCode;
use forkd_api::library::LibraryProgress;
use forkd_api::sandbox::{CreatedSandboxes, Sandbox};
use forkd_api::snapshot::{PushedSnapshot, RepositoryTags, Snapshot, SnapshotStatus};
use forkd_tests::binaries;
use forkd_tests::cutting_proxy::{CuttingProxy, Refusal};
use forkd_tests::docker_registry::DockerRegistry;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking::{self, Words};
use forkd_tests::engine::tiny::PATIENCE;
use forkd_tests::registry::{self, Registry};
use rustix::process::Signal;
use serde_json::json;

use crate::world::World;

/// A daemon with `base`, and `one`, a branch of a sandbox whose guest has kept a number in its memory and on its disk.
pub(crate) fn sender() -> Result<World, Failure> {
    let world = World::with_guest(&ticking::elf(), &[])?;
    let sandbox = world.fork("base", 1)?.remove(0);
    Words::of(world.sandbox(&sandbox.id)?.pid.ok_or("no process")?, PATIENCE)?.keep(7, PATIENCE)?;
    let wanted = json!({ "tag": "one", "wait": true });
    world.tell(&format!("POST /v1/sandboxes/{}/branch", sandbox.id), wanted)?.parsed::<Snapshot>(201)?;
    Ok(world)
}

/// What a fork has in its memory, which must be what it reads from its disk.
pub(crate) fn number_in(world: &World, tag: &str) -> Result<u64, Failure> {
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
    // From there it goes on, in the blobs that it came in, and is still what somebody had in memory.
    let wanted = json!({ "reference": reference("again") });
    let said = to.refuses(ErrorCode::WrongState, "POST /v1/snapshots/pulled/push", wanted)?;
    assert!(said.contains("pulled is based on a snapshot of a sandbox"), "{said}");
    let told = to.forkd(&["snapshot", "push", "pulled", &reference("again"), "--yes", "--json"])?;
    let pushed: PushedSnapshot = serde_json::from_str(&told)?;
    assert!(pushed.sent_bytes < 10_000, "{pushed:?}");

    let none = json!({ "reference": reference("none") });
    to.refuses(ErrorCode::UpstreamFailed, "POST /v1/snapshots/pull", none)?;
    to.refuses(ErrorCode::Malformed, "POST /v1/snapshots/pull", json!({ "reference": "no reference" }))?;
    to.refuses(ErrorCode::NotFound, "POST /v1/snapshots/none/push", json!({ "reference": reference("x") }))?;
    Ok(())
}

const MIB: u64 = 1 << 20;
/// Bytes of memory of [`large`] that cannot be compressed.
pub(crate) const NOISE: u64 = 24 * MIB;

/// Numbers of a xorshift generator.
fn noise() -> Result<Vec<u8>, Failure> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(usize::try_from(NOISE)?);
    for _ in 0..NOISE / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    Ok(bytes)
}

/// A registry that has `large`, the same as `one` with much in its memory, and a way to it.
pub(crate) fn large() -> Result<(DockerRegistry, CuttingProxy), Failure> {
    let registry = DockerRegistry::start()?;
    let world = World::with_guest(&ticking::elf(), &[])?;
    let sandbox = world.fork("base", 1)?.remove(0);
    let words = Words::of(world.sandbox(&sandbox.id)?.pid.ok_or("no process")?, PATIENCE)?;
    words.fill(&noise()?)?;
    words.keep(7, PATIENCE)?;
    let wanted = json!({ "tag": "large", "wait": true });
    world.tell(&format!("POST /v1/sandboxes/{}/branch", sandbox.id), wanted)?.parsed::<Snapshot>(201)?;
    world.forkd(&["snapshot", "push", "large", &format!("{}/team/app:large", registry.address), "--yes"])?;
    let proxy = CuttingProxy::start(&registry.address)?;
    Ok((registry, proxy))
}

/// Bytes of what came of pulls that failed.
pub(crate) fn partial_bytes(world: &World) -> Result<u64, Failure> {
    let mut bytes = 0;
    for entry in fs::read_dir(world.root().join("partial"))? {
        bytes += entry?.metadata()?.blocks() * 512;
    }
    Ok(bytes)
}

pub(crate) fn tags(world: &World) -> Result<Vec<String>, Failure> {
    Ok(world.snapshots()?.into_iter().map(|snapshot| snapshot.tag).collect())
}

/// Answers that end a transfer, and the error that users get.
pub(crate) const REFUSALS: [(Refusal, &str); 3] = [
    (Refusal::Unauthorized, "the registry wants other credentials; log in to it"),
    (Refusal::TooManyRequests, "the registry is busy and asks to wait 7200 s"),
    (Refusal::Forbidden, "the registry wants other credentials; log in to it"),
];

/// A pull that gets the rest: the bytes that were missing, a frame that was on its way, and the documents again.
fn pull_the_rest(world: &World, proxy: &CuttingProxy, had: u64) -> Result<(), Failure> {
    assert_eq!(tags(world)?, ["base"], "nothing has a name");
    proxy.cut_after(u64::MAX);
    world.forkd(&["snapshot", "pull", &format!("{}/team/app:large", proxy.address)])?;
    let (passed, missing) = (proxy.passed(), NOISE - had);
    assert!(passed < missing + 2 * MIB + MIB / 4, "{passed} bytes, {missing} were missing");
    assert_eq!(number_in(world, "large")?, 7);
    assert_eq!(partial_bytes(world)?, 0);
    Ok(())
}

#[test]
fn a_pull_continues_after_the_network_was_lost() -> Result<(), Failure> {
    let (_registry, proxy) = large()?;
    let world = World::new()?;
    let wanted = json!({ "reference": format!("{}/team/app:large", proxy.address) });
    let mut there = 0;
    // The connection is cut several times, and less is missing each time.
    for (refusal, says) in REFUSALS {
        proxy.cut_with(6 * MIB, refusal);
        let said = world.refuses(ErrorCode::UpstreamFailed, "POST /v1/snapshots/pull", wanted.clone())?;
        assert!(said.contains(says), "{refusal:?}: {said}");
        assert_eq!(tags(&world)?, ["base"], "{refusal:?}: no tag is created");
        let now = partial_bytes(&world)?;
        assert!(now > there + 3 * MIB, "{refusal:?}: {now} bytes after {there}");
        there = now;
    }
    // Each pull has received at least two complete frames.
    pull_the_rest(&world, &proxy, 3 * 4 * MIB)
}

#[test]
fn a_pull_continues_after_the_daemon_was_killed() -> Result<(), Failure> {
    let (_registry, proxy) = large()?;
    let mut world = World::new()?;
    proxy.stall_after(13 * MIB);
    let wanted = json!({ "reference": format!("{}/team/app:large", proxy.address) });
    let accept = "accept: application/x-ndjson\r\n";
    let pull = world.lines_of(accept, "POST /v1/snapshots/pull", &wanted)?;
    world.until("half of it is there", |world| {
        Ok(proxy.passed() > 11 * MIB && partial_bytes(world)? > 10 * MIB)
    })?;
    world.end(Signal::KILL)?;
    drop(pull);
    let there = partial_bytes(&world)?;
    world.start(&[])?;
    assert_eq!(partial_bytes(&world)?, there);
    pull_the_rest(&world, &proxy, 10 * MIB)
}

#[test]
fn a_fork_of_a_reference_pulls_it_once() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, to) = (sender()?, World::new()?);
    let proxy = CuttingProxy::start(&registry.address)?;
    from.forkd(&["snapshot", "push", "one", &format!("{}/team/app:One", registry.address), "--yes"])?;
    let reference = format!("{}/team/app:One", proxy.address);
    let fork = |reference: &str| -> Result<(Sandbox, String), Failure> {
        let run = binaries::forkd(to.home(), &["fork", reference, "--json"]).output()?;
        assert!(run.status.success(), "{}", binaries::transcript(&run));
        let mut created: CreatedSandboxes = serde_json::from_slice(&run.stdout)?;
        Ok((created.sandboxes.remove(0), String::from_utf8(run.stderr)?))
    };
    let (sandbox, told) = fork(&reference)?;
    let tag = sandbox.snapshot_tag;
    assert!(
        tag.starts_with("app-one-") && told.contains(&format!("{reference} is snapshot {tag}")),
        "{told}"
    );
    assert_eq!(number_in(&to, &tag)?, 7);
    // What is there is not pulled again, whatever it is called: only manifest and config are asked for.
    proxy.cut_after(u64::MAX);
    let pushed = to.forkd(&[
        "snapshot",
        "push",
        &tag,
        &format!("{}/team/other:x", registry.address),
        "--yes",
        "--json",
    ])?;
    let pushed: PushedSnapshot = serde_json::from_str(&pushed)?;
    for reference in [reference, pushed.reference.replace(&registry.address, &proxy.address)] {
        assert_eq!(fork(&reference)?.0.snapshot_tag, tag, "{reference}");
    }
    assert!(proxy.passed() < 40_000, "{}", proxy.passed());

    // A name without a registry is one of this daemon's.
    let run = binaries::forkd(to.home(), &["fork", "team/app:One"]).output()?;
    assert!(String::from_utf8(run.stderr)?.contains("no snapshot or sandbox is named"));

    let list = to.forkd(&["snapshot", "ls", &format!("{}/team/app", registry.address), "--json"])?;
    let list: RepositoryTags = serde_json::from_str(&list)?;
    let [listed] = &list.tags[..] else { return Err(format!("{list:?}").into()) };
    assert!(listed.snapshot && !list.truncated && listed.tag == "One", "{list:?}");
    assert!(listed.digest.starts_with("sha256:") && listed.size_bytes > Some(1000), "{list:?}");
    let made = from.snapshot("one")?.created_at_unix;
    assert!(listed.created_at_unix.ok_or("no time")?.abs_diff(made) < 5, "{list:?}");
    let shown = to.forkd(&["snapshot", "ls", &format!("{}/team/app", registry.address)])?;
    assert!(shown.contains(&listed.digest) && shown.contains("yes"), "{shown}");
    let list = |repository: &str| json!({ "repository": repository });
    let request = "POST /v1/snapshots/repository";
    to.refuses(ErrorCode::Malformed, request, list(&format!("{}/team/app:One", registry.address)))?;
    to.refuses(ErrorCode::UpstreamFailed, request, list(&format!("{}/team/none", registry.address)))?;
    Ok(())
}

/// What is there already is not part of the total.
#[test]
fn a_pull_says_how_many_bytes_are_done() -> Result<(), Failure> {
    let (_registry, proxy) = large()?;
    let world = World::new()?;
    let transfers = |tag: &str| -> Result<Vec<[u64; 2]>, Failure> {
        let wanted = json!({ "reference": format!("{}/team/app:large", proxy.address), "tag": tag });
        let accept = "accept: application/x-ndjson\r\n";
        let mut lines = world.lines_of(accept, "POST /v1/snapshots/pull", &wanted)?;
        let mut transfers = Vec::new();
        while let Some(line) = lines.next()? {
            if let Some(LibraryProgress::Transfer(told)) = serde_json::from_value(line)? {
                transfers.push([told.done_bytes, told.total_bytes]);
            }
        }
        Ok(transfers)
    };
    proxy.cut_after(10 * MIB);
    let first = transfers("large")?;
    let [_, total] = *first.first().ok_or("nothing is told")?;
    assert!(total > NOISE && first.iter().all(|told| told[1] == total && told[0] <= total), "{first:?}");
    assert!(first.is_sorted() && first.len() > 4, "{first:?}");
    proxy.cut_after(u64::MAX);
    let rest = transfers("large")?;
    let [done, less] = *rest.last().ok_or("nothing is told")?;
    assert!(done == less && less < total - 5 * MIB, "{rest:?} after {first:?}");
    Ok(())
}

/// A helper of this user's says who they are, and the daemon pulls in their name.
#[test]
fn credentials_come_from_a_helper_of_the_user() -> Result<(), Failure> {
    let registry = Registry::start(b"")?;
    let world = World::new()?;
    let docker = world.home().join("docker");
    fs::create_dir_all(docker.join("bin"))?;
    let config = json!({ "credHelpers": { &registry.address: "of-a-test" } });
    fs::write(docker.join("config.json"), config.to_string())?;
    let helper = docker.join("bin/docker-credential-of-a-test");
    let answer = json!({ "ServerURL": "", "Username": registry::USER, "Secret": registry::PASSWORD });
    let script = format!("#!/bin/sh\ncat > \"{}/asked\"\necho '{answer}'\n", docker.display());
    binaries::install_script(&script, &helper)?;
    let reference = format!("{}/team/app:latest", registry.address);
    let pull = |path: String| {
        binaries::forkd(world.home(), &["snapshot", "pull", &reference])
            .env("DOCKER_CONFIG", &docker)
            .env("PATH", path)
            .output()
    };
    // The registry lets them in, and has an image there.
    let told = binaries::transcript(&pull(format!("{}:/usr/bin:/bin", docker.join("bin").display()))?);
    assert!(told.contains("not a forkd snapshot"), "{told}");
    assert_eq!(fs::read_to_string(docker.join("asked"))?, registry.address);
    let told = binaries::transcript(&pull("/usr/bin:/bin".into())?);
    assert!(told.contains("docker-credential-of-a-test, which must be in PATH"), "{told}");
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
