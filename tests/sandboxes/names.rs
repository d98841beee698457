//! Further names of snapshots.

use std::fs;
use std::time::Instant;

use forkd_engine::{EngineError, Removal};
use forkd_store::Tag;
use forkd_tests::engine::process::Failure;

use crate::world::World;

fn add(world: &World, tag: &str, name: &str, force: bool) -> Result<(), EngineError> {
    let snapshot = world.engine.snapshot(tag)?;
    world.run(world.engine.add_name(&snapshot, name.parse()?, move |_| force))
}

fn names(world: &World, tag: &str) -> Result<Vec<String>, Failure> {
    Ok(world.engine.names_of(&tag.parse::<Tag>()?).iter().map(ToString::to_string).collect())
}

#[test]
fn a_name_is_used_like_a_tag_and_outlives_the_daemon() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.run(world.make("base")?.durable())?;
    world.run(world.make("other")?.durable())?;
    add(&world, "base", "latest", false)?;
    add(&world, "latest", "stable", false)?;
    add(&world, "base", "stable", false)?;
    for _ in 0..2 {
        assert_eq!(names(&world, "base")?, ["latest", "stable"]);
        assert_eq!(world.engine.snapshot("latest")?.tag().as_str(), "base");
        world.fork("stable", 1)?;
        // Tags and names are one space.
        assert!(matches!(world.make("latest"), Err(EngineError::NameTaken(_))));
        assert!(matches!(add(&world, "base", "other", true), Err(EngineError::NameTaken(_))));
        assert!(matches!(add(&world, "other", "latest", false), Err(EngineError::NameInUse { .. })));
        world.restart()?;
    }
    add(&world, "other", "latest", true)?;
    assert_eq!(
        (names(&world, "base")?, names(&world, "other")?),
        (vec!["stable".into()], vec!["latest".into()])
    );
    world.restart()?;
    assert_eq!(world.engine.snapshot("latest")?.tag().as_str(), "other");
    world.run(world.engine.remove_name(&"other".parse::<Tag>()?, "latest".parse()?))?;
    assert!(world.engine.snapshot("latest").is_err());
    let missing = world.run(world.engine.remove_name(&"other".parse::<Tag>()?, "stable".parse()?));
    assert!(matches!(missing, Err(EngineError::NoName { .. })));
    world.run(world.make("latest")?.durable())?;
    Ok(())
}

#[test]
fn names_go_with_their_snapshot_if_that_is_wanted() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(world.make("base")?.durable())?;
    add(&world, "base", "latest", false)?;
    let remove = |all_names| {
        world.run(world.engine.remove_snapshot_of(None, "base", Removal { cascade: false, all_names }))
    };
    let refused = remove(false).unwrap_err();
    assert_eq!(refused.to_string(), "snapshot base has other names: latest");
    // A name is not what is removed.
    assert!(matches!(
        world.run(world.engine.remove_snapshot("latest", false)),
        Err(EngineError::NoSnapshot(_))
    ));
    remove(true)?;
    assert!(world.engine.snapshot("latest").is_err());
    assert_eq!(world.names("names"), [""; 0]);
    // Another snapshot with the tag does not have the name.
    world.run(world.make("base")?.durable())?;
    assert_eq!(names(&world, "base")?, [""; 0]);
    world.run(world.make("latest")?.durable())?;
    Ok(())
}

#[test]
fn a_file_that_cannot_be_read_removes_nothing() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.run(world.make("base")?.durable())?;
    for name in ["good", "bad"] {
        add(&world, "base", name, false)?;
    }
    let [bad, gone, left] =
        ["bad", "gone", ".new-killed"].map(|name| world.directory.path().join("names").join(name));
    let whole = fs::read_to_string(&bad)?;
    fs::write(&bad, &whole[..20])?;
    // Of a snapshot that is no more, and of a daemon that was killed.
    fs::write(&gone, whole.replace("base", "gone"))?;
    fs::write(&left, "half")?;
    let recovered = world.restart()?;
    assert!(recovered.unreadable.iter().any(|one| one.path == bad), "{recovered:?}");
    assert_eq!((names(&world, "base")?, recovered.stored.len()), (vec!["good".into()], 1));
    assert!(bad.exists() && !gone.exists() && !left.exists());
    // Its name is nobody else's meanwhile.
    assert!(matches!(add(&world, "base", "bad", true), Err(EngineError::NameTaken(_))));
    assert!(matches!(world.make("bad"), Err(EngineError::NameTaken(_))));
    assert_eq!(fs::read_to_string(&bad)?, &whole[..20]);
    fs::write(&bad, &whole)?;
    world.restart()?;
    assert_eq!(names(&world, "base")?, ["bad", "good"]);
    Ok(())
}

/// Their cost does not grow with their number.
#[test]
fn a_snapshot_has_thousands_of_names() -> Result<(), Failure> {
    let mut world = World::new()?;
    world.run(world.make("base")?.durable())?;
    let begun = Instant::now();
    for number in 0..2000 {
        add(&world, "base", &format!("n{number}"), false)?;
    }
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    assert_eq!(world.restart()?.unreadable, []);
    assert_eq!(names(&world, "base")?.len(), 2000);
    world.fork("n1999", 1)?;
    world.run(world.engine.remove_snapshot("base", false))?;
    assert_eq!(world.names("names"), [""; 0]);
    Ok(())
}
