//! Templates that E2B's clients build: one snapshot for the same contents, whatever names it has.

use std::time::Instant;

use forkd_api::snapshot::Snapshot;
use forkd_image::images::ImageStore;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::PATIENCE;
use forkd_tests::fake_agent::FakeAgents;
use forkd_tests::scale;
use forkd_tests::tiny_library::fill;
use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::world::World;

const KEY: &str = "x-api-key: e2b_0000000000000000000000000000000000000000\r\n";
/// How many names one template gets.
const MANY: u32 = 50;
const SOAK: u32 = 2000;

fn ask(world: &World, request: &str, body: Option<Value>) -> Result<Answer, Failure> {
    client::send(&world.socket(), request, KEY, body.as_ref())
}

/// A daemon with the template `warm`, on which templates can be built without a guest: its image has E2B's user.
fn world() -> Result<(World, FakeAgents), Failure> {
    let (world, agents) = World::with_agents(&[])?;
    let library = world.library();
    fill(&library)?;
    let images = ImageStore::new(&library);
    let image = images.find("empty")?;
    let path = image.path.join("metadata.json");
    let mut metadata: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    metadata["config"]["user"] = json!("user");
    std::fs::write(&path, serde_json::to_vec(&metadata)?)?;
    images.name(&"e2b-template/warm:latest".parse()?, image.id())?;
    let warm = json!({ "tag": "warm", "image": "empty", "network": false, "memory_mib": 64, "e2b": true });
    world.tell("POST /v1/snapshots", warm)?.parsed::<Snapshot>(201)?;
    Ok((world, agents))
}

/// Builds a template, and waits for its end. What it has said.
fn build(world: &World, mut new: Value, value: &str, force: bool) -> Result<Vec<String>, Failure> {
    new["memoryMB"] = json!(64);
    let new: Value = ask(world, "POST /v3/templates", Some(new))?.parsed(202)?;
    let [template, id] =
        [&new["templateID"], &new["buildID"]].map(|id| id.as_str().unwrap_or_default().to_owned());
    let steps = json!([{ "type": "ENV", "args": ["A", value] }]);
    let start = json!({ "fromTemplate": "warm", "steps": steps, "force": force });
    let started = ask(world, &format!("POST /v2/templates/{template}/builds/{id}"), Some(start))?;
    assert_eq!(started.status, 202, "{}", started.body);
    let begun = Instant::now();
    loop {
        let request = format!("GET /templates/{template}/builds/{id}/status");
        let status: Value = ask(world, &request, None)?.parsed(200)?;
        match status["status"].as_str() {
            Some("ready") => {
                let lines = status["logs"].as_array().ok_or("no logs")?.iter();
                return Ok(lines.filter_map(|line| Some(line.as_str()?.to_owned())).collect());
            }
            Some("error") => return Err(format!("{status}").into()),
            _ if begun.elapsed() > PATIENCE => return Err(format!("not in time: {status}").into()),
            _ => std::thread::sleep(std::time::Duration::from_millis(2)),
        }
    }
}

fn named(name: &str) -> Value {
    json!({ "name": name })
}

fn is_reused(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("unchanged: "))
}

/// The snapshots of builds.
fn builds(world: &World) -> Result<Vec<String>, Failure> {
    let built = world.snapshots()?.into_iter().filter(|snapshot| snapshot.build_key.is_some());
    Ok(built.map(|snapshot| snapshot.tag).collect())
}

fn status(world: &World, request: &str, body: Option<Value>) -> Result<u16, Failure> {
    Ok(ask(world, request, body)?.status)
}

/// An image is booted and frozen, once, when the first sandbox of it is asked for.
#[test]
fn an_image_is_a_template() -> Result<(), Failure> {
    let (world, _agents) = world()?;
    let before = world.snapshots()?.len();
    for _ in 0..2 {
        let made: Value =
            ask(&world, "POST /sandboxes", Some(json!({ "templateID": "empty" })))?.parsed(201)?;
        assert!(made["sandboxID"].is_string(), "{made}");
    }
    assert_eq!(world.snapshots()?.len(), before + 1);
    Ok(())
}

/// A snapshot that is based on another one has more on its disk than its image.
#[test]
fn only_a_template_of_an_image_can_be_built_on() -> Result<(), Failure> {
    let (world, _agents) = world()?;
    let derived = json!({ "snapshot": "warm", "tag": "derived", "wait": true });
    world.tell("POST /v1/snapshots", derived)?.parsed::<Snapshot>(201)?;
    build(&world, named("built"), "1", false)?;
    let new: Value = ask(&world, "POST /v3/templates", Some(named("next")))?.parsed(202)?;
    let request = format!("POST /v2/templates/next/builds/{}", new["buildID"].as_str().ok_or("no id")?);
    for (template, expected) in
        [("derived", "is a snapshot of another snapshot, which cannot be built on"), ("gone", "gone")]
    {
        let refused = ask(&world, &request, Some(json!({ "fromTemplate": template, "steps": [] })))?;
        assert_eq!(refused.status, if template == "gone" { 404 } else { 400 }, "{}", refused.body);
        assert!(refused.body.contains(expected), "{}", refused.body);
    }
    // It has not begun, so it still can.
    let on_built = json!({ "fromTemplate": "built", "steps": [] });
    assert_eq!(status(&world, &request, Some(on_built))?, 202);
    Ok(())
}

#[test]
fn many_names_of_one_template_cost_one_build() -> Result<(), Failure> {
    let (mut world, _agents) = world()?;
    let count = scale::count(MANY, SOAK);
    let begun = Instant::now();
    assert!(!is_reused(&build(&world, named("app-0"), "1", false)?));
    let first = begun.elapsed();
    for number in 1..count {
        let lines = build(&world, named(&format!("app-{number}")), "1", false)?;
        assert!(is_reused(&lines), "{lines:?}");
    }
    let all = begun.elapsed();
    println!("{count} names: the first in {first:?}, all in {all:?}");
    assert_eq!(builds(&world)?.len(), 1);
    let listed: Vec<Value> = ask(&world, "GET /templates", None)?.parsed(200)?;
    assert_eq!(listed.len(), usize::try_from(count)? + 2, "each name, and base and warm");
    // A daemon that starts again knows them all.
    world.end(rustix::process::Signal::KILL)?;
    world.start(&[])?;
    let last = format!("app-{}", count - 1);
    assert!(is_reused(&build(&world, named(&last), "1", false)?));
    for number in 0..count - 1 {
        assert_eq!(status(&world, &format!("DELETE /templates/app-{number}"), None)?, 204);
    }
    assert_eq!(builds(&world)?.len(), 1);
    assert_eq!(status(&world, "GET /templates/aliases/app-0", None)?, 404);
    let made = ask(&world, "POST /v2/sandboxes", Some(json!({ "templateID": last })))?;
    let made: Value = made.parsed(201)?;
    assert_eq!(made["templateID"], last);
    assert_eq!(status(&world, &format!("DELETE /templates/{last}"), None)?, 204);
    assert_eq!((builds(&world)?.len(), world.sandboxes("")?.len()), (0, 1));
    println!("removed after {:?}", begun.elapsed());
    Ok(())
}

#[test]
fn a_template_is_made_anew_when_its_contents_change_or_it_is_forced() -> Result<(), Failure> {
    let (world, _agents) = world()?;
    build(&world, named("web"), "1", false)?;
    build(&world, named("app"), "1", false)?;
    let first = builds(&world)?;
    assert!(!is_reused(&build(&world, named("web"), "2", false)?));
    assert_eq!(builds(&world)?.len(), 2, "app still means the first");
    assert!(is_reused(&build(&world, named("web"), "1", false)?));
    assert_eq!(builds(&world)?, first, "nothing means the second any more");
    assert!(!is_reused(&build(&world, named("web"), "1", true)?));
    assert_eq!(builds(&world)?.len(), 2);
    assert!(!is_reused(&build(&world, named("app"), "2", false)?));
    assert!(!builds(&world)?.contains(&first[0]));
    // A name of forkd's own keeps it.
    let own: Snapshot = world.ask("PUT /v1/snapshots/app/names/mine")?.parsed(200)?;
    assert_eq!(status(&world, "DELETE /templates/app", None)?, 204);
    assert_eq!(world.snapshot("mine")?.tag, own.tag);
    assert_eq!(status(&world, "GET /templates/aliases/app", None)?, 404);
    Ok(())
}

#[test]
fn templates_built_at_once_are_one() -> Result<(), Failure> {
    let (world, _agents) = world()?;
    let done: usize = std::thread::scope(|scope| {
        let build = |number: usize| {
            let world = &world;
            scope.spawn(move || build(world, named(&format!("app-{number}")), "1", false).is_ok())
        };
        let building: Vec<_> = (0..4).map(build).collect();
        building.into_iter().map(|one| usize::from(one.join().unwrap_or(false))).sum()
    });
    assert_eq!((done, builds(&world)?.len()), (4, 1));
    Ok(())
}

#[test]
fn tags_are_assigned_and_removed() -> Result<(), Failure> {
    let (world, _agents) = world()?;
    build(&world, json!({ "name": "web", "tags": ["v1", "v2"] }), "1", false)?;
    build(&world, named("web"), "2", false)?;
    assert_eq!(builds(&world)?.len(), 2);
    let tags = || -> Result<Vec<(String, String)>, Failure> {
        let listed: Vec<Value> = ask(&world, "GET /templates/web/tags", None)?.parsed(200)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        assert!(listed.iter().all(|tag| tag["createdAt"].is_string()), "{listed:?}");
        Ok(listed.iter().map(|tag| (text(&tag["tag"]), text(&tag["buildID"]))).collect())
    };
    let listed = tags()?;
    assert_eq!(listed.iter().map(|(tag, _)| tag.as_str()).collect::<Vec<_>>(), ["default", "v1", "v2"]);
    assert!(
        listed[1].1 == listed[2].1 && listed[0].1 != listed[1].1 && listed[0].1.len() == 36,
        "{listed:?}"
    );
    let assign = json!({ "target": "web:v1", "tags": ["stable", "default"] });
    let assigned: Value = ask(&world, "POST /templates/tags", Some(assign))?.parsed(201)?;
    assert_eq!(assigned, json!({ "buildID": listed[1].1, "tags": ["stable", "default"] }));
    assert_eq!(builds(&world)?.len(), 1, "no tag means the second any more");
    let made = ask(&world, "POST /v2/sandboxes", Some(json!({ "templateID": "web:stable" })))?;
    assert_eq!(made.status, 201, "{}", made.body);
    let remove = |tags: &[&str]| {
        status(&world, "DELETE /templates/tags", Some(json!({ "name": "web", "tags": tags })))
    };
    assert_eq!(remove(&["v1", "none"])?, 404);
    assert_eq!(tags()?.len(), 4, "none goes if one is not there");
    assert_eq!(remove(&["v1", "v2", "default"])?, 204);
    assert_eq!(tags()?.iter().map(|(tag, _)| tag.as_str()).collect::<Vec<_>>(), ["stable"]);
    for (target, tags, expected) in [
        ("none", json!(["x"]), 404),
        ("warm", json!(["x"]), 404),
        ("web:stable", json!([]), 400),
        ("web:stable", json!(["a b"]), 400),
        ("web:stable", json!(vec!["x"; 101]), 400),
    ] {
        let body = json!({ "target": target, "tags": tags });
        assert_eq!(status(&world, "POST /templates/tags", Some(body))?, expected, "{target}");
    }
    assert_eq!(remove(&["stable"])?, 204);
    assert_eq!((builds(&world)?.len(), status(&world, "GET /templates/web/tags", None)?), (0, 404));
    Ok(())
}
