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
SNAPSHOT  KIND  STATUS  AGE  DEPTH  [..]OWN  [..]SHARED
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
SNAPSHOT    KIND  STATUS  AGE  DEPTH  [..]OWN  [..]SHARED
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
