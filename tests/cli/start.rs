//! `forkd run` where there is no daemon, on a host whose KVM can run guests: as a prober beside the binary says.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

use forkd_tests::binaries;
use forkd_tests::engine::process::Failure;
use forkd_tests::engine::tiny::{PATIENCE, lives};
use rustix::process::{Pid, Signal, getsid, kill_process};
use snapbox::{assert_data_eq, str};

use crate::outcome::outcome;
use crate::world::Home;

const PROBER: &str = r#"#!/bin/sh
echo '{"kvm":{"state":"good","slowdown":1.0,"vms":1},"tsc_khz":1000000}'
"#;

/// Runs `forkd run` with its binaries elsewhere.
fn run(home: &Home) -> Result<Output, Failure> {
    let binaries = home.path().join("bin");
    if !binaries.exists() {
        fs::create_dir(&binaries)?;
        binaries::install(&binaries::directory().join("forkd"), &binaries.join("forkd"))?;
        binaries::install_script(PROBER, &binaries.join("forkd-vmm"))?;
    }
    let mut command = std::process::Command::new(binaries.join("forkd"));
    command
        .args(["run", "nothing", "--", "true"])
        .env_clear()
        .env(forkd_host::home::HOME_VARIABLE, home.path())
        // Not every host that tests run on has cgroup v2.
        .env("FORKD_CGROUP", "none");
    Ok(command.env("PATH", "/usr/bin:/bin").output()?)
}

#[test]
fn a_daemon_is_started_and_said_so_once() -> Result<(), Failure> {
    let home = Home::new()?;
    let output = run(&home)?;
    let said = String::from_utf8(output.stderr.clone())?;
    let pid = said.split_once("process ").and_then(|(_, rest)| rest.split(',').next()?.parse::<i32>().ok());
    let pid = pid.ok_or_else(|| format!("no process: {said}"))?;
    let ended = Ended(pid);
    assert_data_eq!(
        outcome(&output, home.path()),
        str![[r#"
exit: 1
--- stderr
forkd: no daemon was running; starting one, process [..], and logs to HOME/daemon.log
forkd: no snapshot or image is named nothing
hint: forkd run --pull gets an image from a registry; forkd image pull, build and import make others

"#]]
    );
    // It is nobody's child, and in no session of the terminal's.
    assert_eq!(getsid(Pid::from_raw(pid))?, Pid::from_raw(pid).ok_or("no pid")?);
    assert_data_eq!(
        outcome(&run(&home)?, home.path()),
        str![[r#"
exit: 1
--- stderr
forkd: no snapshot or image is named nothing
hint: forkd run --pull gets an image from a registry; forkd image pull, build and import make others

"#]]
    );
    drop(ended);
    Ok(())
}

/// Ends a daemon.
struct Ended(i32);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let begun = Instant::now();
        while lives(self.0) && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn one_that_does_not_start_is_said_with_its_reason() -> Result<(), Failure> {
    let home = Home::new()?;
    let in_the_way: PathBuf = home.path().join("engine");
    fs::write(&in_the_way, "")?;
    assert_data_eq!(
        outcome(&run(&home)?, home.path()),
        str![[r#"
exit: 1
--- stderr
forkd: the daemon did not start; the whole log is in HOME/daemon.log:
[..]no cgroups[..]
forkd: cannot make the engine's directory: File exists (os error 17)

"#]]
    );
    Ok(())
}
