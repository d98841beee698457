//! A host's disk that is or becomes full. Small disks are tmpfs mounts in a mount namespace of the test's own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use forkd_tests::binaries::{directory, transcript};
use forkd_tests::{TestResult, check};

use crate::world::{Failure, World};

/// Runs a script that may mount; `forkd` is in its PATH and `$FORKD_HOME` is the world's.
fn in_namespace(world: &World, script: &str) -> Result<std::process::Output, Failure> {
    let mut unshare = Command::new("unshare");
    unshare.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    let path = std::env::var("PATH")?;
    unshare.args(["--", "sh", "-eu", "-c", script]);
    unshare.env("FORKD_HOME", world.home()).env("PATH", format!("{}:{path}", directory().display()));
    Ok(unshare.output()?)
}

pub fn init_refuses_a_small_disk() -> TestResult {
    let world = World::without_image()?;
    let output = in_namespace(
        &world,
        "mount -t tmpfs -o size=64m tmpfs $FORKD_HOME
         ! forkd machine init
         find $FORKD_HOME -mindepth 2",
    )?;
    let said = String::from_utf8_lossy(&output.stderr);
    check!(output.status.success(), "{}", transcript(&output));
    check!(
        said.contains("not enough disk space: building the machine's image needs 3072 MiB"),
        "it says: {said}"
    );
    check!(output.stdout.is_empty(), "left behind: {}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}

pub fn a_build_that_runs_out_leaves_nothing() -> TestResult {
    let world = World::without_image()?;
    let tools = world.home().join("tools");
    fs::create_dir(&tools)?;
    let fake = tools.join("mmdebstrap");
    // It gets half-way, as it would on a disk that fills up.
    fs::write(
        &fake,
        "#!/bin/sh\nfor last; do :; done\nhead -c 1000000 /dev/zero >\"$last\"\n\
         echo 'E: write error: No space left on device' >&2\nexit 28\n",
    )?;
    fs::set_permissions(&fake, PermissionsExt::from_mode(0o755))?;
    let path = std::env::var("PATH")?;
    let output = world.command(&["init"]).env("PATH", format!("{}:{path}", tools.display())).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    check!(output.status.code() == Some(1), "{}", transcript(&output));
    check!(said.contains("mmdebstrap failed") && said.contains("No space left on device"), "it says: {said}");
    let left = fs::read_dir(world.home().join("machine-images"))?.count();
    check!(left == 0, "{left} entries are left in the image cache");
    check!(world.machine_files()?.is_empty(), "a machine was made");
    Ok(())
}

/// The machine stops, unharmed, and goes on when there is room again.
pub fn a_full_disk_pauses_the_machine() -> TestResult {
    let world = World::new()?;
    let output = in_namespace(
        &world,
        "mkdir -p $FORKD_HOME/machines
         mount -t tmpfs -o size=260m tmpfs $FORKD_HOME/machines
         trap 'forkd machine rm --force >&2' EXIT
         forkd machine init >&2
         forkd machine start >&2
         head -c 120M /dev/zero >$FORKD_HOME/machines/ballast
         # The machine writes more than the host has room for; the command ends when the machine goes on.
         forkd machine exec -- sh -c 'head -c 190M /dev/urandom >/root/data && sync && echo written' &
         writer=$!
         tries=0
         until forkd machine status --json | grep -q '\"state\": \"paused\"'; do
             tries=$((tries + 1)); [ $tries -lt 600 ] || { forkd machine status >&2; exit 1; }
             sleep 0.1
         done
         forkd machine status | grep hint
         ! forkd machine start
         rm $FORKD_HOME/machines/ballast
         forkd machine start >&2
         wait $writer
         forkd machine status --json | grep '\"state\"'
         forkd machine stop >&2",
    )?;
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    check!(output.status.success(), "{}", transcript(&output));
    check!(said.contains("the host's disk is full: free some space"), "status gives no hint: {said}");
    check!(complaints.contains("not enough disk space: continuing needs"), "start says: {complaints}");
    check!(said.contains("written") && said.contains("running"), "the machine did not go on: {said}");
    Ok(())
}
