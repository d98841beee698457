//! The guests of builds are limited as sandboxes are, and leave no cgroup behind, whatever becomes of the daemon.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};

type Error = Box<dyn std::error::Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(300);
/// Which cgroups of builds there are, with their limits and how many processes are in them.
const LOOK: &str = "cd /sys/fs/cgroup/forkd
for it in build-*; do
    test -d $it || continue
    echo $(cat $it/memory.max $it/memory.swap.max $it/cpu.max $it/pids.max) $(wc -l <$it/cgroup.procs)
done";

/// A build that ends with this value.
struct Build(Child);

impl Drop for Build {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn build(daemon: &Daemon, directory: &str) -> Result<Build, Error> {
    let arguments = ["image", "build", directory, "--network", "none", "--memory", "512M"];
    let mut command = daemon.command(&arguments);
    Ok(Build(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
}

/// Waits until the cgroups of builds are so.
fn until(what: &str, holds: impl Fn(&[&str]) -> bool) -> TestResult {
    let begun = Instant::now();
    loop {
        let seen = host()?.script(LOOK)?;
        let seen: Vec<&str> = seen.lines().collect();
        if holds(&seen) {
            return Ok(());
        }
        check!(begun.elapsed() < PATIENCE, "not in time: {what}: {seen:?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

pub fn are_limited_and_leave_nothing() -> TestResult {
    let mut daemon = Daemon::start()?;
    let context = tempfile::tempdir()?;
    // Another one in every run: what an earlier run has kept is none of this one's.
    let stamp = std::time::UNIX_EPOCH.elapsed()?.as_nanos();
    let directory = context.path().to_str().ok_or("not text")?;
    let write = |round: u32, seconds: u32| {
        let text = format!("FROM {DEBIAN}\nRUN echo {stamp} {round} && sleep {seconds}\n");
        fs::write(context.path().join("Dockerfile"), text)
    };
    // The guest's memory, a part of it, and 64 MiB; no swap; one CPU; its threads and some.
    let memory = (512 + 512 / 32 + 64) << 20;
    let limits = format!("{memory} 0 100000 100000 17 ");
    let is_limited = |seen: &[&str]| matches!(seen, [one] if one.strip_prefix(&limits).is_some_and(|processes| processes != "0"));

    write(1, 10)?;
    let mut first = build(&daemon, directory)?;
    until("the guest is limited", is_limited)?;
    check!(first.0.wait()?.success(), "the build failed");
    until("its cgroup is gone", |seen| seen.is_empty())?;

    write(2, 600)?;
    let second = build(&daemon, directory)?;
    until("the guest is limited", is_limited)?;
    daemon.kill_and_start()?;
    drop(second);
    until("the cgroup is gone after a crash", |seen| seen.is_empty())
}
