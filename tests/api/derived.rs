//! A snapshot of a snapshot, with a command and code run in it.

use forkd_tests::daemon::Daemon;
use forkd_tests::{TestResult, check};

use crate::life::snapshot;

pub fn a_snapshot_has_what_a_command_left() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let command = "echo hello > /opt/hello";
    // The code uses variables of the parent and the file of the command.
    let code = "python=state.append(open('/opt/hello').read().strip()); total = int(numpy.arange(10).sum())";
    let make = ["snapshot", "make", "--snapshot", "warm", "--tag", "derived"];
    daemon.run(&[&make[..], &["--run", command, "--warm-up", code]].concat())?;
    let id = daemon.fork("derived", 1)?.remove(0);
    let found = daemon.run(&["exec", "--user", "root", &id, "--", "cat", "/opt/hello"])?;
    check!(found == "hello", "{found}");
    let found = daemon.run(&["eval", &id, "state, total"])?;
    check!(found == "(['parent', 'hello'], 45)", "{found}");
    // The parent has not changed.
    let parent = daemon.fork("warm", 1)?.remove(0);
    let found = daemon.run(&["eval", &parent, "state, 'total' in globals()"])?;
    check!(found == "(['parent'], False)", "{found}");
    Ok(())
}
