//! Snapshots in registries: whose memory they have, which of several is pulled, what is sent again, and daemons that are killed while
//! one arrives or is pushed.

use std::fs;
use std::os::unix::process::ExitStatusExt;

use forkd_api::error::ErrorCode;
use forkd_api::library::LibraryProgress;
use forkd_api::snapshot::{PushedSnapshot, Snapshot};
use forkd_engine::fault::PLACES;
use forkd_hub::registry::{PushOptions, Repository};
use forkd_hub::{About, Annotations, Outgoing, Role, Silent};
use forkd_proto::control::Prefault;
use forkd_proto::page_runs::PageRuns;
use forkd_store::Store;
use forkd_tests::binaries;
use forkd_tests::cutting_proxy::CuttingProxy;
use forkd_tests::docker_registry::DockerRegistry;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::ticking;
use rustix::process::Signal;
use serde_json::json;

use crate::client;
use crate::travel::{NOISE, REFUSALS, large, number_in, partial_bytes, sender, tags};
use crate::world::World;

const NDJSON: &str = "accept: application/x-ndjson\r\n";

fn push(world: &World, tag: &str, reference: &str, options: &[&str]) -> Result<PushedSnapshot, Failure> {
    let told = world.forkd(&[&["snapshot", "push", tag, reference, "--json"], options].concat())?;
    Ok(serde_json::from_str(&told)?)
}

fn derive(world: &World, from: &str, tag: &str) -> Result<(), Failure> {
    let wanted = json!({ "snapshot": from, "tag": tag, "wait": true });
    world.tell("POST /v1/snapshots", wanted)?.parsed::<Snapshot>(201)?;
    Ok(())
}

/// What a sandbox had in its memory is pushed only with a yes, whatever was made of it and wherever it has been.
#[test]
fn memory_of_a_sandbox_needs_a_yes_wherever_it_goes() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, to) = (sender()?, World::new()?);
    let reference = |tag: &str| format!("{}/team/app:{tag}", registry.address);
    let refuses = |world: &World, tag: &str, words: &str| -> Result<(), Failure> {
        let wanted = json!({ "reference": reference("refused") });
        let said = world.refuses(ErrorCode::WrongState, &format!("POST /v1/snapshots/{tag}/push"), wanted)?;
        assert!(said.contains(words), "{tag}: {said}");
        Ok(())
    };
    refuses(&from, "one", "was made of sandbox ")?;
    // Derived from it, and compacted: nothing of the branch is left but its memory.
    derive(&from, "one", "derived")?;
    refuses(&from, "derived", "derived is based on one, a snapshot of sandbox ")?;
    derive(&from, "derived", "twice")?;
    from.ask("POST /v1/snapshots/twice/compact")?.parsed::<Snapshot>(200)?;
    assert_eq!(from.snapshot("twice")?.parent, None);
    refuses(&from, "twice", "twice is based on a snapshot of a sandbox")?;
    // Pulled, and loaded from a file, and the same of that.
    push(&from, "twice", &reference("twice"), &["--yes"])?;
    to.forkd(&["snapshot", "pull", &reference("twice"), "--tag", "pulled"])?;
    refuses(&to, "pulled", "pulled is based on a snapshot of a sandbox")?;
    derive(&to, "pulled", "of-pulled")?;
    refuses(&to, "of-pulled", "is based on a snapshot of a sandbox")?;
    let file = from.home().join("derived.tar").display().to_string();
    from.forkd(&["snapshot", "save", "derived", "-o", &file])?;
    to.forkd(&["snapshot", "load", &file, "--tag", "loaded"])?;
    refuses(&to, "loaded", "loaded is based on a snapshot of a sandbox")?;
    to.ask("POST /v1/snapshots/loaded/compact")?.parsed::<Snapshot>(200)?;
    refuses(&to, "loaded", "loaded is based on a snapshot of a sandbox")?;
    assert!(registry.requests()?.iter().all(|request| !request.contains("refused")), "nothing was sent");

    // What no sandbox has ever used needs none, there and here.
    derive(&from, "base", "clean")?;
    push(&from, "clean", &reference("clean"), &[])?;
    to.forkd(&["snapshot", "pull", &reference("clean"), "--tag", "clean"])?;
    derive(&to, "clean", "cleaner")?;
    to.ask("POST /v1/snapshots/cleaner/compact")?.parsed::<Snapshot>(200)?;
    push(&to, "cleaner", &reference("cleaner"), &[])?;
    Ok(())
}

/// The list of first pages is learned after a while. Pushed again with it, a tag would not be signed any more.
#[test]
fn what_is_learned_after_a_push_does_not_unsign_it() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, to) = (sender()?, World::new()?);
    let reference = format!("{}/team/app:base", registry.address);
    let key = from.home().join("team.key").display().to_string();
    from.forkd(&["snapshot", "key", "new", &key])?;
    let first = push(&from, "base", &reference, &["--sign-key", &key])?;
    let store = Store::new(from.root().join("snapshots"));
    let base = "base".parse()?;
    let digest = store.get(&base)?.ok_or("no base")?.sealed.digest;
    let learn = |pages: u64| -> Result<(), Failure> {
        let list = Prefault { written: PageRuns::first_of(std::iter::once(0..pages)), ..Prefault::default() };
        Ok(store.keep_prefault(&base, &digest, &list)?)
    };
    learn(3)?;
    let again = push(&from, "base", &reference, &[])?;
    assert_eq!((again.reference, again.sent_bytes), (first.reference, 0));
    let public = format!("{key}.pub");
    to.forkd(&["snapshot", "pull", &reference, "--tag", "pulled", "--key", &public])?;
    // One that is learned before the first push goes along, and the next one does not replace it.
    derive(&from, "base", "later")?;
    let later = "later".parse()?;
    let its = store.get(&later)?.ok_or("none")?.sealed.digest;
    let list = Prefault { written: PageRuns::first_of(std::iter::once(0..2)), ..Prefault::default() };
    store.keep_prefault(&later, &its, &list)?;
    let reference = format!("{}/team/app:later", registry.address);
    let first = push(&from, "later", &reference, &[])?;
    let list = Prefault { written: PageRuns::first_of(std::iter::once(0..5)), ..Prefault::default() };
    store.keep_prefault(&later, &its, &list)?;
    assert_eq!(push(&from, "later", &reference, &[])?.reference, first.reference);
    to.forkd(&["snapshot", "pull", &reference, "--tag", "later"])?;
    let arrived = Store::new(to.root().join("snapshots")).prefault(&later)?.ok_or("none")?;
    assert_eq!(arrived.list.ok_or("no list")?.written, PageRuns::first_of(std::iter::once(0..2)));
    Ok(())
}

/// Nobody has to say where a parent's blobs are.
#[test]
fn blobs_are_taken_from_where_the_parents_went() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, to) = (sender()?, World::new()?);
    let reference = |name: &str| format!("{}/{name}:v1", registry.address);
    let base = push(&from, "base", &reference("team/base"), &[])?;
    let before = registry.requests()?.len();
    let one = push(&from, "one", &reference("other/child"), &["--yes"])?;
    let mounts = |before: usize| -> Result<usize, Failure> {
        let asked = registry.requests()?.split_off(before);
        Ok(asked.iter().filter(|request| request.contains("mount=")).count())
    };
    let config = 20_000;
    assert!(one.present_bytes + config > base.sent_bytes && mounts(before)? > 1, "{one:?} after {base:?}");
    // One that was pulled is known to be where it came from.
    to.forkd(&["snapshot", "pull", &reference("other/child"), "--tag", "pulled"])?;
    let before = registry.requests()?.len();
    let third = push(&to, "pulled", &reference("third/child"), &["--yes"])?;
    assert!(third.sent_bytes < config && mounts(before)? > 1, "{third:?}");
    // Of another registry nothing is asked for.
    let elsewhere = DockerRegistry::start()?;
    let fourth = push(&to, "pulled", &format!("{}/team/x:v1", elsewhere.address), &["--yes"])?;
    assert!(fourth.present_bytes == 0 && elsewhere.requests()?.iter().all(|it| !it.contains("mount=")));
    Ok(())
}

/// Adds a variant for hosts of somebody else's to a tag.
fn push_foreign(reference: &str, name: &str, vendor: &str) -> Result<(), Failure> {
    let source = name.as_bytes().to_vec();
    let stream = Outgoing { role: Role::State, name, source: &source, known: None, remembered: None };
    let annotations = Annotations::from_iter([("dev.forkd.cpu.vendor".to_owned(), vendor.to_owned())]);
    let snapshot =
        forkd_hub::Snapshot { streams: &[stream], about: &About::new(), annotations: &annotations };
    let options = PushOptions { variant: Some(name.to_owned()), ..PushOptions::default() };
    Repository::new(reference, None)?.push(snapshot, &options, &Silent)?;
    Ok(())
}

#[test]
fn of_several_variants_the_one_that_fits_is_pulled() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, to) = (sender()?, World::new()?);
    let reference = format!("{}/team/app:v1", registry.address);
    let key = from.home().join("team.key").display().to_string();
    from.forkd(&["snapshot", "key", "new", &key])?;
    push_foreign(&reference, "first", "NobodysOwnXX")?;
    push_foreign(&reference, "second", "NobodysOther")?;
    let wanted = json!({ "reference": reference });
    let said = to.refuses(ErrorCode::UpstreamFailed, "POST /v1/snapshots/pull", wanted)?;
    for words in ["none of the 2 variants", "\"first\": it ran on a CPU of NobodysOwnXX", "NobodysOther"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // This host's comes last, and is found. What is signed is what the tag names, so a key vouches for no variant unasked.
    let signing = ["snapshot", "push", "one", &reference, "--variant", "here", "--yes", "--sign-key", &key];
    let refused = binaries::forkd(from.home(), &signing).output()?;
    let said = String::from_utf8(refused.stderr)?;
    assert!(
        !refused.status.success() && said.contains("is not signed") && said.contains("sign it first"),
        "{said}"
    );
    from.forkd(&["snapshot", "sign", &reference, "--key", &key])?;
    let pushed = push(&from, "one", &reference, &["--variant", "here", "--yes", "--sign-key", &key])?;
    let public = format!("{key}.pub");
    to.forkd(&["snapshot", "pull", &reference, "--tag", "pulled", "--key", &public])?;
    assert_eq!(number_in(&to, "pulled")?, 7);
    // The same name again takes its place, and those of others stay.
    let again = push(&from, "one", &reference, &["--variant", "here", "--yes"])?;
    assert_eq!(again.reference, pushed.reference);
    let manifest = |reference: &str| -> Result<serde_json::Value, Failure> {
        let url = format!("http://{}/v2/team/app/manifests/{reference}", registry.address);
        let accept = "Accept: application/vnd.oci.image.index.v1+json";
        let told = std::process::Command::new("curl").args(["-sS", "-H", accept, &url]).output()?;
        Ok(serde_json::from_slice(&told.stdout)?)
    };
    let index = manifest("v1")?;
    let listed = index["manifests"].as_array().ok_or("no index")?;
    let names: Vec<_> = listed.iter().map(|one| &one["annotations"]["dev.forkd.variant"]).collect();
    assert_eq!(names, ["first", "second", "here"]);
    let said = from.refuses(
        ErrorCode::UpstreamFailed,
        "POST /v1/snapshots/base/push",
        json!({ "reference": reference, "variant": "Not A Name" }),
    )?;
    assert!(said.contains("\"Not A Name\" is not a valid name of a variant"), "{said}");
    // Without a name the tag is this one's alone.
    push(&from, "base", &reference, &[])?;
    to.forkd(&["snapshot", "pull", &reference, "--tag", "alone"])?;
    Ok(())
}

/// All of a chain is needed, and an operator's garbage collection keeps it.
#[test]
fn garbage_collection_keeps_what_snapshots_need() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, to) = (sender()?, World::new()?);
    let reference = |tag: &str| format!("{}/team/app:{tag}", registry.address);
    push(&from, "one", &reference("one"), &["--yes"])?;
    push(&from, "one", &reference("several"), &["--yes", "--variant", "here"])?;
    let left = registry.leave_blob(b"of a push that was killed")?;
    registry.collect_garbage()?;
    assert!(!left.exists(), "it collects");
    for tag in ["one", "several"] {
        to.forkd(&["snapshot", "pull", &reference(tag), "--tag", tag])?;
        assert_eq!(number_in(&to, tag)?, 7);
    }
    Ok(())
}

/// Nothing of a snapshot is fetched when the disk has no room for all of it.
#[test]
fn a_snapshot_that_does_not_fit_the_disk_is_not_fetched() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, mut to) = (sender()?, World::new()?);
    let reference = format!("{}/team/app:one", registry.address);
    push(&from, "one", &reference, &["--yes"])?;
    let file = from.home().join("one.tar");
    from.forkd(&["snapshot", "save", "one", "-o", &file.display().to_string()])?;
    to.end(Signal::TERM)?;
    to.start(&["--free-disk", "900T"])?;
    let before = registry.requests()?.len();
    let said = to.refuses(ErrorCode::NoDisk, "POST /v1/snapshots/pull", json!({ "reference": reference }))?;
    assert!(said.contains("not enough disk"), "{said}");
    let asked = registry.requests()?.split_off(before);
    let blobs = asked.iter().filter(|request| request.contains("/blobs/")).count();
    assert_eq!(blobs, 1, "only the config: {asked:?}");
    to.upload("", "POST /v1/snapshots/load", &fs::read(&file)?)?.error(ErrorCode::NoDisk)?;
    assert_eq!((partial_bytes(&to)?, tags(&to)?), (0, vec!["base".to_owned()]));
    to.end(Signal::TERM)?;
    to.start(&[])?;
    to.forkd(&["snapshot", "pull", &reference])?;
    Ok(())
}

/// Whatever a daemon was about when it was killed, the next one has all of a snapshot or nothing of it, and gets the rest.
#[test]
fn a_daemon_that_dies_while_a_snapshot_arrives_leaves_none_half_made() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, mut to) = (sender()?, World::new()?);
    let reference = format!("{}/team/app:one", registry.address);
    push(&from, "one", &reference, &["--yes"])?;
    let file = from.home().join("one.tar");
    from.forkd(&["snapshot", "save", "one", "-o", &file.display().to_string()])?;
    let archive = fs::read(&file)?;
    let mut places = 0;
    for place in PLACES.into_iter().filter(|place| place.starts_with("arrive.")) {
        places += 1;
        for is_pull in [true, false] {
            let what = format!("{place} of a {}", if is_pull { "pull" } else { "load" });
            let told = |error: Failure| format!("{what}: {error}");
            to.end(Signal::KILL)?;
            to.launch(&[], &[("FORKD_FAULT", place)])?;
            let answers = |world: &World| {
                Ok(client::send(&world.socket(), "GET /healthz", "", None).is_ok_and(|it| it.status == 200))
            };
            to.until("the daemon answers", answers).map_err(told)?;
            // The answer breaks off.
            let _ = match is_pull {
                true => to.tell("POST /v1/snapshots/pull", json!({ "reference": reference })),
                false => to.upload("", "POST /v1/snapshots/load", &archive),
            };
            assert_eq!(to.ended_itself()?.signal(), Some(Signal::KILL.as_raw()), "{what}");
            to.start(&[])?;
            let there = tags(&to)?;
            match place {
                // It is whole, and only its caller was not told.
                "arrive.published" => assert!(there.len() == 3 && there.contains(&"one".into()), "{there:?}"),
                _ => assert_eq!(there, ["base"], "{what}: nothing that nobody asked for"),
            }
            assert_eq!(fs::read_dir(to.root().join("arriving"))?.count(), 0, "{what}");
            if there.len() == 1 {
                let before = registry.requests()?.len();
                to.forkd(&["snapshot", "pull", &reference])?;
                let asked = registry.requests()?.split_off(before);
                let fetched = asked.iter().filter(|request| request.contains("/blobs/")).count();
                // The config is; everything else was there when a pull was killed behind its last byte.
                let has_all = is_pull && place != "arrive.small";
                assert!(!has_all || fetched == 1, "{what}: {asked:?}");
            }
            assert_eq!(number_in(&to, "one").map_err(told)?, 7);
            for sandbox in to.sandboxes("")? {
                to.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?;
            }
            to.forkd(&["snapshot", "rm", "one"])?;
            for below in tags(&to)?.into_iter().filter(|tag| tag != "base") {
                to.forkd(&["snapshot", "rm", &below])?;
            }
        }
    }
    assert_eq!(places, 6);
    Ok(())
}

/// What was published below a snapshot that then failed is removed, also by the next daemon.
#[test]
fn a_daemon_that_dies_while_it_undoes_an_arrival_leaves_none_of_it() -> Result<(), Failure> {
    let registry = DockerRegistry::start()?;
    let (from, mut to) = (sender()?, World::new()?);
    let reference = format!("{}/team/app:one", registry.address);
    push(&from, "one", &reference, &["--yes"])?;
    to.end(Signal::KILL)?;
    to.start_with(&[], &[("FORKD_FAULT", "undo.arrived")])?;
    // The base has no layer of a disk. That of the head has no place to go to.
    let layers = to.root().join("layers");
    fs::remove_dir_all(&layers)?;
    fs::write(&layers, "")?;
    let _ = to.tell("POST /v1/snapshots/pull", json!({ "reference": reference }));
    assert_eq!(to.ended_itself()?.signal(), Some(Signal::KILL.as_raw()));
    let below = fs::read_dir(to.root().join("snapshots"))?.flatten();
    let below = below.filter(|entry| entry.file_name().to_string_lossy().starts_with("base-")).count();
    assert_eq!(below, 1, "it was published");
    fs::remove_file(&layers)?;
    to.start(&[])?;
    assert_eq!(tags(&to)?, ["base"]);
    assert_eq!(fs::read_dir(to.root().join("arriving"))?.count(), 0);
    to.forkd(&["snapshot", "pull", &reference])?;
    assert_eq!(number_in(&to, "one")?, 7);
    Ok(())
}

/// A limit of what a project's snapshots take on disk counts what a pull brings, and not what is here.
#[test]
fn a_pull_counts_what_is_not_here() -> Result<(), Failure> {
    let (source, _proxy) = large()?;
    let reference = |tag: &str| format!("{}/team/app:{tag}", source.address);
    let from = World::with_guest(&ticking::elf(), &[])?;
    from.forkd(&["snapshot", "pull", &reference("large")])?;
    derive(&from, "large", "child")?;
    push(&from, "child", &reference("child"), &["--yes"])?;
    let to = World::with(&["--listen", "127.0.0.1:0"])?;
    let address = to.address()?;
    let token =
        to.token_with("limited", &["--scope", "admin", "--project", "one", "--max-snapshot-disk", "8M"])?;
    let headers = format!("authorization: Bearer {token}\r\ncontent-type: application/json\r\n");
    let wanted = json!({ "reference": reference("child") }).to_string();
    let pull = || client::send_tcp(&address, "POST /v1/snapshots/pull", &headers, &wanted);
    let refused = pull()?.error(ErrorCode::TooMany)?;
    assert!(refused.error.contains("MiB of snapshots on disk"), "{refused:?}");
    assert_eq!(partial_bytes(&to)?, 0);
    to.forkd(&["snapshot", "pull", &reference("large")])?;
    pull()?.parsed::<Snapshot>(201)?;
    Ok(())
}

/// Stalls pushes at several points and ends them with `end`. A push that was ended has set no tag, and the next one does not send
/// again what the registry has.
fn pushes_continue(
    end: impl Fn(&mut World, &CuttingProxy, client::Lines, usize) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (source, _proxy) = large()?;
    let mut world = World::with_guest(&ticking::elf(), &[])?;
    world.forkd(&["snapshot", "pull", &format!("{}/team/app:large", source.address), "--tag", "large"])?;
    let to = World::new()?;
    let mut has_continued = false;
    for (number, bytes) in [600, 1500, 3000].into_iter().enumerate() {
        // Of another registry, which has nothing.
        let registry = DockerRegistry::start()?;
        let proxy = CuttingProxy::start(&registry.address)?;
        let reference = |address: &str| format!("{address}/team/app:pushed");
        proxy.stall_after(bytes);
        let wanted = json!({ "reference": reference(&proxy.address), "yes": true });
        let lines = world.lines_of(NDJSON, "POST /v1/snapshots/large/push", &wanted)?;
        world.until("it stands still", |_| {
            let before = registry.requests()?.len();
            std::thread::sleep(std::time::Duration::from_millis(300));
            Ok(proxy.passed() > 0 && registry.requests()?.len() == before)
        })?;
        end(&mut world, &proxy, lines, number)?;
        let sent = registry.taken_blobs()? > 0;
        let direct = reference(&registry.address);
        let missing = json!({ "reference": direct });
        to.refuses(ErrorCode::UpstreamFailed, "POST /v1/snapshots/pull", missing)?;
        let pushed = push(&world, "large", &direct, &["--yes"])?;
        assert!(!sent || pushed.present_bytes > 0, "{pushed:?}");
        assert!(pushed.sent_bytes + pushed.present_bytes > NOISE, "{pushed:?}");
        has_continued |= sent && pushed.present_bytes > 0;
        let tag = format!("pulled-{number}");
        to.forkd(&["snapshot", "pull", &direct, "--tag", &tag])?;
        assert_eq!(number_in(&to, &tag)?, 7);
    }
    assert!(has_continued, "some blob was there when a push ended");
    Ok(())
}

#[test]
fn a_push_continues_after_the_daemon_was_killed() -> Result<(), Failure> {
    pushes_continue(|world, _, lines, _| {
        world.end(Signal::KILL)?;
        drop(lines);
        world.start(&[])
    })
}

#[test]
fn a_push_continues_after_the_network_was_lost() -> Result<(), Failure> {
    pushes_continue(|_, proxy, mut lines, number| {
        let (refusal, says) = REFUSALS[number];
        proxy.cut_with(0, refusal);
        let mut last = None;
        while let Some(line) = lines.next()? {
            last = serde_json::from_value::<Option<LibraryProgress>>(line)?;
        }
        let Some(LibraryProgress::Error(error)) = last else { return Err(format!("{last:?}").into()) };
        assert!(error.code == ErrorCode::UpstreamFailed && error.error.contains(says), "{error:?}");
        Ok(())
    })
}
