//! Kernels, through the daemon and without one.

use std::fs;

use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::Failure;
use snapbox::{assert_data_eq, str};

use crate::images::is_root;
use crate::world::{Home, World};

/// A file that is a kernel of this version, as far as forkd can tell.
fn kernel(home: &Home, version: &str) -> Result<String, Failure> {
    let path = home.path().join(format!("vmlinux-{version}"));
    fs::write(&path, [guest::elf(100), format!("Linux version {version} (x)\0").into_bytes()].concat())?;
    Ok(path.to_string_lossy().into_owned())
}

#[test]
fn kernels_are_sent_chosen_and_removed() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let (one, two) = (kernel(&world, "6.1.2")?, kernel(&world, "6.1.3")?);
    assert_data_eq!(
        world.run(&["kernel", "ls"])?,
        str![[r#"
exit: 0
--- stdout
ID  VERSION  MODULES  LIBRARY  DEFAULT

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "add", "--path", &one])?,
        str![[r#"
exit: 0
--- stdout
6.1.2-[..]
--- stderr
forkd: sending HOME/vmlinux-6.1.2
forkd: unpacking the kernel
forkd: adding kernel 6.1.2

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "add", "--path", &two, "--default", "--json"])?,
        str![[r#"
exit: 0
--- stdout
{
  "name": "6.1.3-[..]",
  "version": "6.1.3",
  "default": true,
  "shared": false,
  "created_at_unix": [..],
  "modules": [],
  "missing": []
}
--- stderr
forkd: sending HOME/vmlinux-6.1.3
forkd: unpacking the kernel
forkd: adding kernel 6.1.3

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "ls"])?,
        str![[r#"
exit: 0
--- stdout
ID                  VERSION  MODULES  LIBRARY  DEFAULT
6.1.2-[..]  6.1.2          0  own
6.1.3-[..]  6.1.3          0  own      yes

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "default"])?,
        str![[r#"
exit: 0
--- stdout
6.1.3-[..]

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "rm", "6.1.3"])?,
        str![[r#"
exit: 1
--- stderr
forkd: 6.1.3-[..] is the default kernel
hint: choose another first (forkd kernel default), or remove it with --force

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "default", "6.1.2"])?,
        str![[r#"
exit: 0
--- stdout
6.1.2-[..]

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "default", "6.1"])?,
        str![[r#"
exit: 1
--- stderr
forkd: "6.1" matches more than one kernel; give the full id

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "rm", "6.1.3"])?,
        str![[r#"
exit: 0
--- stderr
Kernel 6.1.3-[..] is removed.

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "rm", "6.1.4"])?,
        str![[r#"
exit: 1
--- stderr
forkd: there is no kernel "6.1.4"
hint: see forkd kernel ls

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "rm", "6.1.2", "--force", "--json"])?,
        str![[r#"
exit: 0
--- stdout
{
  "name": "6.1.2-[..]",
  "version": "6.1.2",
  "default": true,
  "shared": false,
  "created_at_unix": [..],
  "modules": [],
  "missing": []
}

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "ls", "--json"])?,
        str![[r#"
exit: 0
--- stdout
[]

"#]]
    );
    Ok(())
}

#[test]
fn kernels_that_are_none_are_named() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let world = World::new()?;
    let none = world.path().join("none").to_string_lossy().into_owned();
    assert_data_eq!(
        world.run(&["kernel", "add", "--path", &none])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot read HOME/none: No such file or directory (os error 2)

"#]]
    );
    let text = world.path().join("text");
    fs::write(&text, "no kernel")?;
    let text = text.to_string_lossy().into_owned();
    assert_data_eq!(
        world.run(&["kernel", "add", "--path", &text])?,
        str![[r#"
exit: 1
--- stderr
forkd: sending HOME/text
forkd: unpacking the kernel
forkd: kernel is not a bootable kernel: neither an ELF file nor a bzImage

"#]]
    );
    let one = kernel(&world, "6.1.2")?;
    assert_data_eq!(
        world.run(&["kernel", "add", "--path", &one, "--modules", &none])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot read HOME/none: No such file or directory (os error 2)

"#]]
    );
    assert_data_eq!(
        world.run(&["kernel", "add", "--host", "--version", "0.0.0-none"])?,
        str![[r#"
exit: 1
--- stderr
forkd: cannot add kernel 0.0.0-none: the daemon's host has no such kernel

"#]]
    );
    Ok(())
}

#[test]
fn without_a_daemon_one_is_started_for_the_command() -> Result<(), Failure> {
    if !is_root() {
        return Ok(());
    }
    let home = Home::new()?;
    let one = kernel(&home, "6.1.2")?;
    assert_data_eq!(
        home.run(&["kernel", "add", "--path", &one])?,
        str![[r#"
exit: 0
--- stdout
6.1.2-[..]
--- stderr
forkd: sending HOME/vmlinux-6.1.2
forkd: unpacking the kernel
forkd: adding kernel 6.1.2

"#]]
    );
    let looks = [&["kernel", "ls"][..], &["kernel", "ls", "--json"], &["kernel", "default", "--json"]];
    let here: Vec<String> = looks.iter().map(|words| home.run(words)).collect::<Result<_, _>>()?;
    let world = World::over(home, &["--listen", "none"], |_| Ok(()))?;
    for (words, here) in looks.iter().zip(here) {
        assert_eq!(world.run(words)?, here, "{words:?}");
    }
    Ok(())
}
