//! Chains of snapshots through the API.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};

use forkd_api::error::ErrorCode;
use forkd_api::snapshot::{
    BuildOutcome, BuiltSnapshot, PrunedSnapshots, RemovedSnapshots, Snapshot, SnapshotHistory, SnapshotKind,
    SnapshotVerification,
};
use forkd_tests::engine::process::Failure;
use forkd_tests::tiny_library::fill;
use serde_json::json;

use crate::world::World;

/// A branch of a new sandbox of a snapshot, on disk.
fn branch(world: &World, parent: &str, tag: &str) -> Result<Snapshot, Failure> {
    let id = world.fork(parent, 1)?.remove(0).id;
    world.tell(&format!("POST /v1/sandboxes/{id}/branch"), json!({ "tag": tag, "wait": true }))?.parsed(201)
}

#[test]
fn a_history_is_a_tree() -> Result<(), Failure> {
    let world = World::new()?;
    branch(&world, "base", "middle")?;
    branch(&world, "base", "sibling")?;
    branch(&world, "middle", "one")?;
    branch(&world, "middle", "two")?;
    let history: SnapshotHistory = world.ask("GET /v1/snapshots/middle/history")?.parsed(200)?;
    assert_eq!(history.tag, "middle");
    let seen: Vec<_> = history
        .snapshots
        .iter()
        .map(|entry| (entry.tag.as_str(), entry.parent.as_deref(), entry.depth, entry.kind))
        .collect();
    let expected = [
        ("base", None, 0, SnapshotKind::Full),
        ("middle", Some("base"), 1, SnapshotKind::Diff),
        ("one", Some("middle"), 2, SnapshotKind::Diff),
        ("two", Some("middle"), 2, SnapshotKind::Diff),
    ];
    assert_eq!(seen, expected);
    assert_eq!(history.snapshots[1].dependents, ["one", "two"]);
    assert!(history.snapshots[1].shared_bytes >= history.snapshots[0].own_bytes);
    world.ask("GET /v1/snapshots/none/history")?.error(ErrorCode::NotFound)?;
    Ok(())
}

#[test]
fn a_damaged_snapshot_is_found_by_verifying_it() -> Result<(), Failure> {
    let world = World::new()?;
    branch(&world, "base", "head")?;
    let verify = || world.ask("POST /v1/snapshots/head/verify")?.parsed::<SnapshotVerification>(200);
    let intact = verify()?;
    assert!(intact.intact && intact.damage.is_none() && intact.snapshots == 2, "{intact:?}");
    let file = File::options().read(true).write(true).open(world.root().join("snapshots/base/memory.bin"))?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, 5000)?;
    file.write_all_at(&[!byte[0]], 5000)?;
    let damaged = verify()?;
    let damage = damaged.damage.ok_or("nobody has noticed")?;
    assert_eq!((damaged.intact, damage.file.as_deref()), (false, Some("snapshots/base/memory.bin")));
    file.write_all_at(&byte, 5000)?;
    assert_eq!(verify()?, intact);
    world.ask("POST /v1/snapshots/none/verify")?.error(ErrorCode::NotFound)?;
    Ok(())
}

#[test]
fn a_snapshot_has_several_names() -> Result<(), Failure> {
    let world = World::new()?;
    branch(&world, "base", "head")?;
    let named: Snapshot = world.ask("PUT /v1/snapshots/base/names/latest")?.parsed(200)?;
    assert_eq!((named.tag.as_str(), &named.names[..]), ("base", &["latest".to_owned()][..]));
    assert_eq!(world.snapshot("latest")?.tag, "base");
    assert_eq!(world.fork("latest", 1)?[0].snapshot_tag, "base");
    let history: SnapshotHistory = world.ask("GET /v1/snapshots/latest/history")?.parsed(200)?;
    assert_eq!((history.tag.as_str(), &history.snapshots[0].names[..]), ("base", &["latest".to_owned()][..]));
    world.ask("PUT /v1/snapshots/base/names/A%20B")?.error(ErrorCode::Malformed)?;
    world.ask("PUT /v1/snapshots/base/names/head?force=true")?.error(ErrorCode::NameTaken)?;
    let taken = world.ask("PUT /v1/snapshots/head/names/latest")?.error(ErrorCode::NameTaken)?;
    assert!(taken.hint.is_some_and(|hint| hint.contains("force")));
    let moved: Snapshot = world.ask("PUT /v1/snapshots/head/names/latest?force=true")?.parsed(200)?;
    assert_eq!((moved.tag.as_str(), world.snapshot("base")?.names.len()), ("head", 0));
    // What has other names is not removed by mistake.
    let refused = world.ask("DELETE /v1/snapshots/base?cascade=true")?.error(ErrorCode::HasDependents)?;
    assert!(refused.error.contains("head has other names: latest"), "{refused:?}");
    let removed: RemovedSnapshots = world.ask("DELETE /v1/snapshots/latest")?.parsed(200)?;
    assert_eq!((removed.removed.len(), &removed.names[..]), (0, &["latest".to_owned()][..]));
    world.ask("PUT /v1/snapshots/head/names/one")?.parsed::<Snapshot>(200)?;
    world.ask("DELETE /v1/snapshots/base/names/one")?.error(ErrorCode::NotFound)?;
    world.ask("DELETE /v1/snapshots/head/names/one")?.parsed::<Snapshot>(200)?;
    world.ask("PUT /v1/snapshots/head/names/two")?.parsed::<Snapshot>(200)?;
    let removed: RemovedSnapshots =
        world.ask("DELETE /v1/snapshots/base?cascade=true&all_names=true")?.parsed(200)?;
    assert_eq!(removed.removed, ["head", "base"]);
    world.ask("GET /v1/snapshots/two")?.error(ErrorCode::NotFound)?;
    Ok(())
}

fn derive(run: &[&str]) -> serde_json::Value {
    json!({ "snapshot": "base", "tag": "derived", "run": run, "wait": true })
}

#[test]
fn a_snapshot_is_made_of_another_one() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let derived: Snapshot = world.tell("POST /v1/snapshots", derive(&["one", "two"]))?.parsed(201)?;
    assert_eq!(
        (derived.parent.as_deref(), derived.branched_from, derived.pause_us),
        (Some("base"), None, None)
    );
    assert_eq!(world.sandboxes("")?.len(), 0);
    world.until_none_is_lost()?;
    world.fork("derived", 2)?;
    assert_eq!(world.snapshot("base")?.children, ["derived"]);
    world.refuses(ErrorCode::NameTaken, "POST /v1/snapshots", derive(&[]))?;
    Ok(())
}

#[test]
fn a_command_that_fails_ends_the_making_of_a_snapshot() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let says = world.refuses(ErrorCode::BuildFailed, "POST /v1/snapshots", derive(&["one", "fail 3"]))?;
    assert!(says.contains("\"fail 3\" exited with 3") && says.ends_with("it is\nbroken"), "{says}");
    for (body, part) in [
        (json!({ "snapshot": "base", "run": ["one"] }), "needs a tag"),
        (json!({ "snapshot": "base", "tag": "t", "image": "i" }), "image can only be given"),
        (json!({ "snapshot": "base", "tag": "t", "memory_mib": 64 }), "memory_mib can only be given"),
        (json!({ "snapshot": "base", "tag": "t", "run": [""] }), "a command of run"),
        (json!({ "tag": "t" }), "one of image and snapshot"),
    ] {
        let says = world.refuses(ErrorCode::Malformed, "POST /v1/snapshots", body)?;
        assert!(says.contains(part), "{says}");
    }
    world.refuses(ErrorCode::NotFound, "POST /v1/snapshots", json!({ "snapshot": "none", "tag": "t" }))?;
    world.until_none_is_lost()?;
    assert_eq!((world.snapshots()?.len(), world.sandboxes("")?.len()), (1, 0));
    Ok(())
}

/// Also when the caller goes away, or the daemon is killed, while a command runs.
#[test]
fn what_is_not_made_to_its_end_leaves_nothing() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    let patience = Duration::from_secs(2);
    world.abandon("POST /v1/snapshots", &derive(&["stall"]), patience)?;
    world.until_none_is_lost()?;
    let mut lines =
        world.lines_of("accept: application/x-ndjson\r\n", "POST /v1/snapshots", &derive(&["stall"]))?;
    while lines.next()?.ok_or("the stream ended")? != json!({ "step": "run" }) {}
    world.end(rustix::process::Signal::KILL)?;
    world.start(&[])?;
    world.until_none_is_lost()?;
    assert_eq!((world.snapshots()?.len(), world.sandboxes("")?.len()), (1, 0));
    world.tell("POST /v1/snapshots", derive(&[]))?.parsed::<Snapshot>(201)?;
    Ok(())
}

#[test]
fn what_nobody_needs_is_pruned() -> Result<(), Failure> {
    let world = World::new()?;
    branch(&world, "base", "middle")?;
    branch(&world, "middle", "one")?;
    branch(&world, "middle", "two")?;
    let used_days_ago = |tag: &str, days: u64| {
        let directory = File::open(world.root().join("snapshots").join(tag))?;
        directory.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 60 * 60))
    };
    for (tag, days) in [("base", 50), ("middle", 40), ("one", 30), ("two", 20)] {
        used_days_ago(tag, days)?;
    }
    let prune = |body: serde_json::Value| {
        let pruned: PrunedSnapshots = world.tell("POST /v1/snapshots/prune", body)?.parsed(200)?;
        assert_eq!(pruned.freed_bytes, pruned.snapshots.iter().map(|one| one.freed_bytes).sum::<u64>());
        Ok::<_, Failure>(pruned.snapshots.into_iter().map(|one| one.tag).collect::<Vec<_>>())
    };
    let week = 7 * 24 * 60 * 60;
    // Their sandboxes can be rolled back to them.
    assert_eq!(prune(json!({ "named": true, "unused_seconds": week }))?, [""; 0]);
    for sandbox in world.sandboxes("")? {
        world.ask(&format!("DELETE /v1/sandboxes/{}", sandbox.id))?;
    }
    assert_eq!(prune(json!({}))?, [""; 0], "all of them have names");
    world.tell("POST /v1/snapshots/prune", json!({ "named": true }))?.error(ErrorCode::Malformed)?;
    world.tell("POST /v1/snapshots/prune", json!({ "project": "A B" }))?.error(ErrorCode::Malformed)?;
    let all = ["one", "two", "middle", "base"];
    let unused = |dry_run| json!({ "named": true, "unused_seconds": week, "dry_run": dry_run });
    assert_eq!(prune(unused(true))?, all);
    assert_eq!(
        prune(json!({ "named": true, "unused_seconds": 25 * 24 * 60 * 60, "dry_run": true }))?,
        ["one"]
    );
    assert_eq!(
        prune(json!({ "named": true, "unused_seconds": 1, "project": "other", "dry_run": true }))?,
        [""; 0]
    );
    assert_eq!(prune(json!({ "named": true, "keep_mib": 1 << 20 }))?, [""; 0]);
    // A fork is a use, also when the sandbox has gone again.
    let id = world.fork("two", 1)?.remove(0).id;
    assert_eq!(prune(unused(true))?, ["one"]);
    world.ask(&format!("DELETE /v1/sandboxes/{id}"))?;
    world.until("the use is noted", |_| Ok(prune(unused(true))? == ["one"]))?;
    world.tell("PUT /v1/snapshots/one/public", json!({ "public": true }))?.parsed::<Snapshot>(200)?;
    assert_eq!(prune(unused(true))?, [""; 0]);
    world.tell("PUT /v1/snapshots/one/public", json!({ "public": false }))?.parsed::<Snapshot>(200)?;
    assert_eq!(prune(unused(false))?, ["one"]);
    world.ask("GET /v1/snapshots/one")?.error(ErrorCode::NotFound)?;
    // Nobody has named what is named after what it is.
    let id = world.fork("two", 1)?.remove(0).id;
    let unnamed = json!({ "tag": format!("base-{:024}", 0), "wait": true });
    world.tell(&format!("POST /v1/sandboxes/{id}/branch"), unnamed)?.parsed::<Snapshot>(201)?;
    assert_eq!(prune(json!({}))?, [""; 0]);
    world.ask(&format!("DELETE /v1/sandboxes/{id}"))?;
    assert_eq!(prune(json!({}))?, [format!("base-{:024}", 0)]);
    assert_eq!(world.fork("two", 1)?[0].snapshot_tag, "two");
    Ok(())
}

#[test]
fn a_snapshot_is_compacted() -> Result<(), Failure> {
    let world = World::new()?;
    branch(&world, "base", "middle")?;
    branch(&world, "middle", "head")?;
    let refused = world.ask("POST /v1/snapshots/middle/compact")?.error(ErrorCode::HasDependents)?;
    assert!(refused.error.contains("head"), "{refused:?}");
    let full: Snapshot = world.ask("POST /v1/snapshots/head/compact")?.parsed(200)?;
    assert_eq!(full.parent, None);
    world.ask("DELETE /v1/snapshots/base?cascade=true")?.parsed::<RemovedSnapshots>(200)?;
    assert_eq!(world.snapshots()?.len(), 1);
    world.fork("head", 1)?;
    world.ask("POST /v1/snapshots/none/compact")?.error(ErrorCode::NotFound)?;
    Ok(())
}

fn build(name: &str, contents: serde_json::Value) -> serde_json::Value {
    json!({ "name": name, "contents": contents })
}

fn built(world: &World, body: serde_json::Value) -> Result<BuiltSnapshot, Failure> {
    world.tell("POST /v1/snapshots/build", body)?.parsed(200)
}

fn tag_of(built: &BuiltSnapshot) -> Result<String, Failure> {
    Ok(built.snapshot.as_ref().ok_or("no snapshot")?.tag.clone())
}

#[test]
fn a_snapshot_is_built_when_its_contents_change() -> Result<(), Failure> {
    let (mut world, _agents) = World::with_agents(&[])?;
    let of = |run: &[&str]| json!({ "snapshot": "base", "run": run });
    let first = built(&world, build("app", of(&["one"])))?;
    assert_eq!((first.outcome, &first.replaced), (BuildOutcome::Made, &None));
    let tag = tag_of(&first)?;
    assert!(
        tag.starts_with("app-") && first.key.as_ref().is_some_and(|key| key.contains(&tag[4..])),
        "{first:?}"
    );
    let snapshot = world.snapshot("app")?;
    assert_eq!(
        (&snapshot.tag, &snapshot.build_key, &snapshot.names[..]),
        (&tag, &first.key, &["app".to_owned()][..])
    );
    let child = built(&world, build("child", json!({ "snapshot": tag, "env": { "A": "1" } })))?;

    // The same contents: nothing is made, whatever the name, also after a restart.
    world.end(rustix::process::Signal::KILL)?;
    world.start(&[])?;
    assert_eq!(built(&world, build("app", of(&["one"])))?.outcome, BuildOutcome::Unchanged);
    let same = built(&world, build("child", json!({ "snapshot": "app", "env": { "A": "1" } })))?;
    assert_eq!((same.outcome, same.key), (BuildOutcome::Unchanged, child.key.clone()));
    let other = built(&world, build("other", of(&["one"])))?;
    assert_eq!((other.outcome, tag_of(&other)?), (BuildOutcome::Reused, tag.clone()));
    assert_eq!(world.snapshot("app")?.names, ["app", "other"]);

    // Other contents: the name moves, and what had it stays, with what is based on it.
    let dry = json!({ "name": "app", "contents": of(&["two"]), "dry_run": true });
    let dry = built(&world, dry)?;
    assert_eq!((dry.outcome, dry.snapshot, dry.replaced), (BuildOutcome::Made, None, Some(tag.clone())));
    assert_eq!(world.snapshots()?.len(), 3);
    let second = built(&world, build("app", of(&["two"])))?;
    assert_eq!(
        (second.outcome, second.key, second.replaced),
        (BuildOutcome::Made, dry.key, Some(tag.clone()))
    );
    assert_eq!((world.snapshot("app")?.tag != tag, world.snapshot("other")?.tag), (true, tag.clone()));
    world.fork("child", 1)?;
    let back = built(&world, build("app", of(&["one"])))?;
    assert_eq!((back.outcome, tag_of(&back)?), (BuildOutcome::Reused, tag.clone()));

    let fresh = json!({ "name": "app", "contents": of(&["one"]), "no_cache": true });
    let fresh = built(&world, fresh)?;
    assert_eq!((fresh.outcome, &fresh.key), (BuildOutcome::Made, &back.key));
    assert_ne!(tag_of(&fresh)?, tag);
    // Of two with the same key, the newest is used. What was based on the other is not based on it.
    let again = built(&world, build("app", of(&["one"])))?;
    assert_eq!((again.outcome, tag_of(&again)?), (BuildOutcome::Unchanged, tag_of(&fresh)?));
    let below = built(&world, build("child", json!({ "snapshot": "app", "env": { "A": "1" } })))?;
    assert_eq!((below.outcome, below.key == child.key), (BuildOutcome::Made, false));
    Ok(())
}

#[test]
fn what_is_built_at_once_is_made_once() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let outcomes: Vec<BuiltSnapshot> = std::thread::scope(|scope| {
        let build = |number: usize| {
            let (world, name) = (&world, format!("app{}", number % 3));
            scope
                .spawn(move || built(world, build(&name, json!({ "snapshot": "base", "run": ["one"] }))).ok())
        };
        let building: Vec<_> = (0..6).map(build).collect();
        building.into_iter().filter_map(|one| one.join().ok().flatten()).collect()
    });
    assert_eq!(outcomes.len(), 6);
    assert_eq!(world.snapshots()?.len(), 2, "{outcomes:?}");
    assert_eq!(world.snapshot("app0")?.names, ["app0", "app1", "app2"]);
    world.until_none_is_lost()
}

#[test]
fn a_build_goes_on_without_its_caller() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let body = build("app", json!({ "snapshot": "base", "run": ["one"] }));
    let mut lines = world.lines_of("accept: application/x-ndjson\r\n", "POST /v1/snapshots/build", &body)?;
    while lines.next()?.ok_or("the stream ended")? != json!({ "step": "fork" }) {}
    drop(lines);
    world.until("it is built", |world| Ok(world.ask("GET /v1/snapshots/app")?.status == 200))?;
    assert_eq!(built(&world, body)?.outcome, BuildOutcome::Unchanged);
    Ok(())
}

#[test]
fn builds_that_make_no_sense_are_refused_and_take_no_name() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    let request = "POST /v1/snapshots/build";
    let of = || json!({ "snapshot": "base", "run": ["one"] });
    world.ask("PUT /v1/snapshots/base/names/mine")?.parsed::<Snapshot>(200)?;
    for (code, body, part) in [
        (ErrorCode::NameTaken, build("base", of()), "there is a snapshot base already"),
        (ErrorCode::NameTaken, build("mine", of()), "a name of snapshot base, which no build made"),
        (ErrorCode::Malformed, build("A B", of()), "is not a tag"),
        (
            ErrorCode::Malformed,
            build("app", json!({ "snapshot": "base", "tag": "t" })),
            "contents.tag cannot",
        ),
        (ErrorCode::Malformed, build("app", json!({})), "one of image and snapshot"),
        (
            ErrorCode::Malformed,
            build("app", json!({ "snapshot": "base", "vcpus": 2 })),
            "vcpus can only be given",
        ),
        (ErrorCode::Malformed, build("app", json!({ "snapshot": "base", "env": { "": "x" } })), "env has"),
        (ErrorCode::NotFound, build("app", json!({ "snapshot": "none" })), "none"),
        (ErrorCode::NotFound, build("app", json!({ "image": "none", "network": false })), "none"),
        (
            ErrorCode::BuildFailed,
            build("app", json!({ "snapshot": "base", "run": ["fail 3"] })),
            "exited with 3",
        ),
    ] {
        let says = world.refuses(code, request, body)?;
        assert!(says.contains(part), "{says}");
    }
    world.ask("GET /v1/snapshots/app")?.error(ErrorCode::NotFound)?;
    assert_eq!((world.snapshots()?.len(), world.snapshot("mine")?.tag), (1, "base".to_owned()));
    // What has failed is tried again.
    let again = build("app", json!({ "snapshot": "base", "run": ["fail 3"] }));
    world.refuses(ErrorCode::BuildFailed, request, again)?;
    world.until_none_is_lost()
}

#[test]
fn an_image_is_booted_once_for_its_contents() -> Result<(), Failure> {
    let (world, _agents) = World::with_agents(&[])?;
    fill(&world.library())?;
    let of = |memory: u64| json!({ "image": "empty", "network": false, "memory_mib": memory });
    let first = built(&world, build("app", of(64)))?;
    assert_eq!(first.outcome, BuildOutcome::Made);
    assert_eq!(built(&world, build("app", of(64)))?.outcome, BuildOutcome::Unchanged);
    let other = built(&world, build("app", of(128)))?;
    assert_eq!((other.outcome, other.replaced), (BuildOutcome::Made, Some(tag_of(&first)?)));
    assert_eq!(world.snapshots()?.len(), 3);
    Ok(())
}
