//! Programs that start by the thousand: the emulator once lost a guest's GS base while Node.js started, and the guest died of a
//! kernel panic.

use std::time::Instant;

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::watch::report;
use forkd_tests::{TestResult, check};

const FORKS: u32 = 50;
/// Starts of each program in one fork.
const EACH: u32 = 40;

pub fn start_by_the_thousand() -> TestResult {
    let daemon = Daemon::start()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "programs"])?;
    let begun = Instant::now();
    for fork in 1..=FORKS {
        let ids = daemon.fork("programs", 1)?;
        let [id] = &ids[..] else { return Err(format!("{ids:?}").into()) };
        for program in ["node -e 0", "python3 -c 0"] {
            let script =
                format!("i=0; while [ $i -lt {EACH} ]; do {program} || exit 1; i=$((i + 1)); done; echo $i");
            let output = daemon.output(&["exec", id, "--", "sh", "-c", &script], b"")?;
            let started = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            if started != EACH.to_string() {
                let console = daemon.run(&["logs", id]).unwrap_or_default();
                let end = daemon.json(&["inspect", id]).unwrap_or_default();
                let words = String::from_utf8_lossy(&output.stderr).into_owned();
                let tail: Vec<&str> = console.lines().rev().take(60).collect();
                let tail = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                return Err(format!("fork {fork}, {program}: {words}\n{end}\n{tail}").into());
            }
        }
        check!(daemon.json(&["inspect", id])?["state"] == "running", "{id} has ended");
        daemon.run(&["kill", id])?;
        report(&format!(
            "{fork} of {FORKS} forks, {} program starts, {} s",
            fork * 2 * EACH,
            begun.elapsed().as_secs()
        ));
    }
    Ok(())
}
