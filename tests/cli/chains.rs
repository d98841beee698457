//! Chains of snapshots.

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::world::World;

#[test]
fn a_history_is_shown_and_a_chain_is_verified() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    world.run(&["snapshot", "make", "--from", &id, "--tag", "child"])?;
    world.run(&["snapshot", "make", "--from", &id, "--tag", "other"])?;
    assert_data_eq!(
        world.run(&["snapshot", "history", "base"])?,
        str![[r#"
exit: 0
--- stdout
SNAPSHOT  KIND  STATUS  AGE  DEPTH  [..]OWN  [..]SHARED  NAMES
base *    full  ready  [..]
├─ child  diff  ready  [..]
└─ other  diff  ready  [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "history", "child"])?,
        str![[r#"
exit: 0
--- stdout
SNAPSHOT    KIND  STATUS  AGE  DEPTH  [..]OWN  [..]SHARED  NAMES
base        full  ready  [..]
└─ child *  diff  ready  [..]

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "verify", "child"])?,
        str![[r#"
exit: 0
--- stdout
tag             child
result          intact
snapshots       2
disk layers     0
read            [..] KiB

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "verify", "none"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no snapshot "none"
hint: forkd snapshot ls lists those there are

"#]]
    );
    Ok(())
}

#[test]
fn a_snapshot_gets_and_loses_names() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(&["snapshot", "make", "--from", &world.fork("base")?, "--tag", "child"])?;
    assert_data_eq!(
        world.run(&["snapshot", "tag", "base", "latest"])?,
        str![[r#"
exit: 0
--- stderr
latest is a name of snapshot base.

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "tag", "child", "latest"])?,
        str![[r#"
exit: 1
--- stderr
forkd: the name latest is in use: it is a name of snapshot base
hint: choose another name, or move it with --force

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "tag", "child", "latest", "--force"])?,
        str![[r#"
exit: 0
--- stderr
latest is a name of snapshot child.

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "child"])?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot child has other names: latest
hint: remove those names first (forkd snapshot rm NAME), or all with --all-names

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "latest"])?,
        str![[r#"
exit: 0
--- stdout
latest

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "tag", "child", "again"])?,
        str![[r#"
exit: 0
--- stderr
again is a name of snapshot child.

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "child", "--all-names"])?,
        str![[r#"
exit: 0
--- stdout
child

"#]]
    );
    Ok(())
}

#[test]
fn a_snapshot_is_compacted() -> Result<(), Failure> {
    let world = World::new()?;
    world.run(&["snapshot", "make", "--from", &world.fork("base")?, "--tag", "child"])?;
    assert_data_eq!(
        world.run(&["snapshot", "compact", "child"])?,
        str![[r#"
exit: 0
--- stderr
Snapshot child is full: [..] of memory on disk.

"#]]
    );
    world.run(&["snapshot", "make", "--from", &world.fork("child")?, "--tag", "next"])?;
    assert_data_eq!(
        world.run(&["snapshot", "compact", "child"])?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot child is the parent of next
hint: compact or remove them first

"#]]
    );
    Ok(())
}
