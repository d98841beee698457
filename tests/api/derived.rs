//! A snapshot of a snapshot, with a command run in it.

use forkd_tests::daemon::Daemon;
use forkd_tests::{TestResult, check};

use crate::life::snapshot;

pub fn a_snapshot_has_what_a_command_left() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let command = "echo hello > /root/hello";
    daemon.run(&["snapshot", "make", "--snapshot", "warm", "--tag", "derived", "--run", command])?;
    let id = daemon.fork("derived", 1)?.remove(0);
    let found = daemon.run(&["exec", "--user", "root", &id, "--", "cat", "/root/hello"])?;
    check!(found == "hello", "{found}");
    Ok(())
}
