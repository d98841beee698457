//! Snapshots.

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::world::World;

#[test]
fn snapshots_are_listed_shown_and_removed() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    assert_data_eq!(world.run(&["snapshot", "--from", &id, "--tag", "child"])?, str![]);
    assert_data_eq!(world.run(&["snapshot", "ls"])?, str![]);
    assert_data_eq!(world.run(&["images", "-q"])?, str![]);
    assert_data_eq!(world.run(&["snapshot", "inspect", "child"])?, str![]);
    assert_data_eq!(world.run(&["inspect", "base"])?, str![]);
    assert_data_eq!(world.run(&["rmi", "base"])?, str![]);
    assert_data_eq!(world.run(&["rmi", "base", "child", "nothing", "--cascade"])?, str![]);
    assert_data_eq!(world.run(&["snapshot", "ls", "--json"])?, str![]);
    Ok(())
}
