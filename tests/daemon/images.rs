//! Snapshots of images, as far as a guest without an agent gets: it boots, and is never ready.

use std::time::Duration;

use forkd_api::error::ErrorCode;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny;
use forkd_tests::tiny_library::fill;
use serde_json::json;

use crate::world::World;

fn world() -> Result<World, Failure> {
    // It is never run.
    let world = World::with(&["--agent", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")])?;
    fill(&world.library())?;
    Ok(world)
}

#[test]
fn what_cannot_be_made_is_refused_before_it_is_booted() -> Result<(), Failure> {
    let world = world()?;
    let make = "POST /v1/snapshots";
    // With a network, unless that is not wanted.
    world.refuses(ErrorCode::Unavailable, make, json!({ "tag": "t", "image": "empty" }))?;
    world.refuses(ErrorCode::NameTaken, make, json!({ "tag": "base", "image": "empty" }))?;
    world.refuses(ErrorCode::NotFound, make, json!({ "tag": "t", "image": "other" }))?;
    world.refuses(ErrorCode::NotFound, make, json!({ "tag": "t", "image": "empty", "kernel": "other" }))?;
    world.refuses(
        ErrorCode::NoMemory,
        make,
        json!({ "tag": "t", "image": "empty", "network": false, "memory_mib": 1 << 20 }),
    )?;
    assert_eq!(tiny::names(&world.root(), "zygotes"), ["base"]);
    Ok(())
}

#[test]
fn whoever_goes_away_ends_what_is_being_made() -> Result<(), Failure> {
    let world = world()?;
    let body = json!({ "tag": "t", "image": "empty", "network": false, "memory_mib": 64 });
    let mut lines = world.lines_of("accept: application/x-ndjson\r\n", "POST /v1/snapshots", &body)?;
    let mut steps = Vec::new();
    while steps.last().is_none_or(|step| step != "boot") {
        let line = lines.next()?.ok_or("the stream has ended")?;
        steps.push(line["step"].as_str().ok_or_else(|| format!("no step: {line}"))?.to_owned());
    }
    world.until("it boots", |world| Ok(tiny::vms(&world.root()).len() == 1))?;
    world.refuses(ErrorCode::NameTaken, "POST /v1/snapshots", body.clone())?;
    drop(lines);
    world.until("its VM ends", |world| Ok(tiny::vms(&world.root()).is_empty()))?;
    // The same without a stream. The name is free again.
    world.abandon("POST /v1/snapshots", &body, Duration::from_millis(300))?;
    world.until("nothing is left", |world| {
        Ok(tiny::vms(&world.root()).is_empty() && tiny::names(&world.root(), "zygotes") == ["base"])
    })?;
    assert_eq!(tiny::names(&world.root(), "layers"), [""; 0]);
    Ok(())
}
