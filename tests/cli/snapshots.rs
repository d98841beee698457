//! Snapshots.

use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::world::World;

#[test]
fn snapshots_are_listed_shown_and_removed() -> Result<(), Failure> {
    let world = World::new()?;
    let id = world.fork("base")?;
    assert_data_eq!(
        world.run(&["snapshot", "--from", &id, "--tag", "child"])?,
        str![[r#"
exit: 0
--- stdout
child
--- stderr
Paused for [..] ms.

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "ls"])?,
        str![[r#"
exit: 0
--- stdout
TAG    STATUS  AGE  VCPUS  MEMORY    DISK  [..]ON DISK  PARENT  FROM
base   ready    [..]s      1  64 MiB  16 MiB  [..] KiB  -       -
child  ready    [..]s      1  64 MiB  16 MiB  [..] KiB  base    ID

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "ls", "-q"])?,
        str![[r#"
exit: 0
--- stdout
base
child

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "inspect", "child"])?,
        str![[r#"
exit: 0
--- stdout
tag             child
status          ready
created         20[..]Z
parent          base
branched from   ID
pause           [..] ms
vcpus           1
cpu             host
memory          64 MiB
disk            16 MiB
memory on disk  [..]
disk on disk    0 B
loaded          yes

"#]]
    );
    assert_data_eq!(
        world.run(&["inspect", "base"])?,
        str![[r#"
exit: 0
--- stdout
tag             base
status          ready
created         20[..]Z
children        child
vcpus           1
cpu             host
memory          64 MiB
disk            16 MiB
memory on disk  [..]
disk on disk    0 B
loaded          yes

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "base"])?,
        str![[r#"
exit: 1
--- stderr
forkd: snapshot base is needed by child
hint: remove them first, or all with --cascade

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "rm", "base", "child", "nothing", "--cascade"])?,
        str![[r#"
exit: 1
--- stdout
child
base
--- stderr
forkd: there is no snapshot "nothing"
hint: see forkd snapshot ls

"#]]
    );
    assert_data_eq!(
        world.run(&["snapshot", "ls", "--json"])?,
        str![[r#"
exit: 0
--- stdout
[]

"#]]
    );
    Ok(())
}
