//! A guest that has taken over its VM process: what that process tries next is denied, all of it.
//!
//! The daemon runs VM processes that do what their guests write to a magic port (`tests/hostile`). The guests are Linux; their
//! root writes to `/dev/port`. Each attempt is made twice: by a process whose system calls are not filtered, to see what the
//! other walls are worth alone, and by one as it is in the product. What was tried is printed.

use std::fmt::Write;
use std::io::Write as _;
use std::time::{Duration, Instant};

use forkd_tests::daemon::{Daemon, Filter};
use forkd_tests::hostile::{AIM_PORT, ATTEMPTS, Attempt, FORK_BOMB, PORT, Without, describe, result_on};
use forkd_tests::library::DEBIAN;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};
use serde_json::Value;

type Error = Box<dyn std::error::Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(60);
/// A port of the host's that somebody listens at: in a machine the daemon.
const HOST_PORT: u16 = 8889;
/// Attackers that are there at once.
const CROWD: usize = 11;
/// As much of a console as all attempts fill.
const CONSOLE: &str = "65536";
/// What a sandbox's process may have open beside its own files: what its VM is made of.
const KINDS: [&str; 10] = [
    "/dev/null",
    "/dev/kvm",
    "/dev/net/tun",
    "/dev/urandom",
    "anon_inode:kvm-vm",
    "anon_inode:kvm-vcpu",
    "anon_inode:[eventfd]",
    "anon_inode:[eventpoll]",
    "anon_inode:[pidfd]",
    "socket:",
];

/// What the parent knows how to do, and so every sandbox.
fn warm_up() -> String {
    format!(
        "python=
import os

def attack(victim, port, number):
    it = os.open('/dev/port', os.O_WRONLY)
    os.pwrite(it, victim.to_bytes(4, 'little') + port.to_bytes(2, 'little'), {AIM_PORT})
    os.pwrite(it, bytes([number]), {PORT})
    os.close(it)
"
    )
}

pub fn that_was_taken_over_gets_nowhere() -> TestResult {
    let mut daemon = Daemon::start()?;
    daemon.become_hostile(Filter::Off)?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "hostile", "--warm-up", &warm_up()])?;
    let results = without_filter(&daemon)?;

    daemon.become_hostile(Filter::On)?;
    give_up_process(&daemon)?;
    let victim = Sandbox::fork(&daemon, 1)?.remove(0);
    let (mut list, mut wrong) = (String::new(), Vec::new());
    writeln!(list, "{:<46} {:<22} without the filter", "tried", "stopped at")?;
    let all: Vec<_> = ATTEMPTS.iter().enumerate().zip(results).collect();
    for some in all.chunks(CROWD) {
        let attackers = Sandbox::fork(&daemon, some.len())?;
        for (((number, attempt), result), attacker) in some.iter().zip(&attackers) {
            let detail = with_filter(&daemon, attacker, victim.pid, *number, attempt)?;
            let expected =
                attempt.stopped_at.map(|call| format!("a vCPU thread made the system call {call} ("));
            let stopped = match (&detail, &expected) {
                (Some(detail), Some(expected)) => detail.starts_with(expected),
                (detail, expected) => detail.is_none() && expected.is_none(),
            };
            if !stopped {
                wrong.push(format!("{}: with the filter {detail:?}", attempt.name));
            }
            if *result >= 0 && (attempt.without_filter == Without::Denied || attempt.name == FORK_BOMB) {
                wrong.push(format!("{}: without the filter {result}", attempt.name));
            }
            writeln!(list, "{}", describe(attempt, *result, detail.as_ref().and(attempt.stopped_at)))?;
        }
        for attacker in attackers {
            daemon.run(&["kill", &attacker.id])?;
        }
    }
    // Past the harness, which would keep it to itself: it is what the test is for.
    std::io::stderr().write_all(list.as_bytes())?;
    check!(wrong.is_empty(), "{wrong:#?}");
    victim.is_well(&daemon)
}

/// What attempts come to without a filter, all made by one process.
fn without_filter(daemon: &Daemon) -> Result<Vec<i64>, Error> {
    give_up_process(daemon)?;
    let [attacker, victim] = <[Sandbox; 2]>::try_from(Sandbox::fork(daemon, 2)?).map_err(|_| "not two")?;
    attacker.is_walled_in(&victim)?;
    for number in 0..ATTEMPTS.len() {
        daemon.run(&["eval", &attacker.id, &attack(victim.pid, number)])?;
    }
    let console = daemon.run(&["logs", &attacker.id, "--bytes", CONSOLE])?;
    let results = ATTEMPTS.iter().enumerate().map(|(number, attempt)| {
        result_on(&console, number).ok_or_else(|| format!("{}: {console}", attempt.name).into())
    });
    let results = results.collect::<Result<_, Error>>()?;
    attacker.is_well(daemon)?;
    victim.is_well(daemon)?;
    daemon.run(&["kill", "--all"])?;
    Ok(results)
}

/// What a sandbox ends with that makes an attempt. `None` if it goes on.
fn with_filter(
    daemon: &Daemon,
    attacker: &Sandbox,
    victim: i32,
    number: usize,
    attempt: &Attempt,
) -> Result<Option<String>, Error> {
    let output = daemon.output(&["eval", &attacker.id, &attack(victim, number)], b"")?;
    if output.status.success() {
        return Ok(None);
    }
    let begun = Instant::now();
    loop {
        let shown = daemon.json(&["inspect", &attacker.id])?;
        if shown["state"] == "ended" {
            check!(shown["ended"]["reason"] == "failed", "{}: {shown}", attempt.name);
            return Ok(shown["ended"]["detail"].as_str().map(ToOwned::to_owned));
        }
        check!(begun.elapsed() < PATIENCE, "{}: it goes on: {shown}", attempt.name);
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn attack(victim: i32, number: usize) -> String {
    format!("attack({victim}, {HOST_PORT}, {number})")
}

/// Ends the process that the snapshot is kept ready in: the next one is loaded from disk, by a VM process of the daemon's kind
/// of now, and gives every child a user id.
fn give_up_process(daemon: &Daemon) -> TestResult {
    let begun = Instant::now();
    host()?.script(
        "for pid in $(cat /sys/fs/cgroup/forkd/zygote-hostile/cgroup.procs || true); do kill -9 $pid; done",
    )?;
    while daemon.json(&["snapshot", "inspect", "hostile"])?["loaded"] != Value::Bool(false) {
        check!(begun.elapsed() < PATIENCE, "the snapshot's process goes on");
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// A sandbox and its process on the host.
struct Sandbox {
    id: String,
    pid: i32,
}

impl Sandbox {
    fn fork(daemon: &Daemon, count: usize) -> Result<Vec<Sandbox>, Error> {
        let ids = daemon.fork("hostile", u32::try_from(count)?)?;
        let pid = |id: &str| -> Result<i32, Error> {
            let pid = daemon.json(&["inspect", id])?["pid"].as_i64().ok_or("no process")?;
            Ok(i32::try_from(pid)?)
        };
        ids.into_iter().map(|id| Ok(Sandbox { pid: pid(&id)?, id })).collect()
    }

    /// It is the same process, and its guest answers.
    fn is_well(&self, daemon: &Daemon) -> TestResult {
        let shown = daemon.json(&["inspect", &self.id])?;
        check!(shown["state"] == "running" && shown["pid"] == self.pid, "{shown}");
        check!(daemon.run(&["eval", &self.id, "6 * 7"])? == "42", "{} does not answer", self.id);
        Ok(())
    }

    /// Its process is where it should be, and has nothing open but what is its own.
    fn is_walled_in(&self, other: &Sandbox) -> TestResult {
        let Sandbox { id, pid } = self;
        host()?.script(&format!(
            "grep -qx 0::/forkd/sandbox-{id} /proc/{pid}/cgroup
             for name in mnt ipc uts net; do
                 test $(readlink /proc/{pid}/ns/$name) != $(readlink /proc/self/ns/$name)
             done
             status() {{ awk \"/^$1:/ {{ print \\$2 }}\" /proc/$2/status; }}
             test $(status NoNewPrivs {pid}) = 1
             test $(status CapEff {pid}) = 0000000000000000
             test $(status Uid {pid}) != $(status Uid {})
             test $(status Seccomp {pid}) = 0",
            other.pid
        ))?;
        let theirs = open_files(other.pid)?;
        for (file, writable) in open_files(self.pid)? {
            let known = KINDS.iter().any(|kind| file.starts_with(kind));
            // Layers of disks; those that others read as well, and the image below, are only for reading.
            let is_disk = ["/layers/", "/snapshots/", "/images/"].iter().any(|place| file.contains(place));
            let shared = theirs.iter().any(|(theirs, _)| *theirs == file);
            let own = file.contains(self.id.as_str()) || (is_disk && !(writable && shared));
            check!(known || own, "{file} was left open{}", if writable { " for writing" } else { "" });
        }
        Ok(())
    }
}

/// What a process has open, and whether it could write there.
fn open_files(pid: i32) -> Result<Vec<(String, bool)>, Error> {
    let shown = host()?.script(&format!(
        "cd /proc/{pid}/fd
         for fd in *; do echo $(awk '/^flags:/ {{ print $2 }}' ../fdinfo/$fd) $(readlink $fd); done"
    ))?;
    // In octal; the last digit says how it was opened.
    let line = |line: &str| {
        let (flags, file) = line.split_once(' ')?;
        Some((file.to_owned(), !flags.ends_with(['0', '4'])))
    };
    shown.lines().map(|each| line(each).ok_or_else(|| each.into())).collect()
}
