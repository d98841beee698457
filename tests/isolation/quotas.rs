//! What a sandbox may use of the host, kept by the kernel: read where the kernel keeps it, and tried.

use std::time::{Duration, Instant};

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::measure::print;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, binaries, check};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);

fn daemon() -> Result<Daemon, Box<dyn std::error::Error + Send + Sync>> {
    let daemon = Daemon::start()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "quota", "--no-wait"])?;
    Ok(daemon)
}

/// Every file of a sandbox's cgroup says what was asked for, and its process is in it.
pub fn are_set() -> TestResult {
    let daemon = daemon()?;
    let limits = ["--cpus", "0.5", "--cpu-weight", "50", "--memory-limit", "300M"];
    let rates = ["--write-rate", "8M", "--io-rate", "500"];
    let id = daemon.run(&[&["fork", "quota"], &limits[..], &rates[..]].concat())?;
    let pid = daemon.json(&["inspect", &id])?["pid"].to_string();
    let group = format!("/sys/fs/cgroup/forkd/sandbox-{id}");
    let seen = host()?.script(&format!(
        "cd {group}; grep -qx {pid} cgroup.procs
         cat memory.max memory.oom.group cpu.max cpu.weight; grep -q . pids.max; cut -d' ' -f2- io.max"
    ))?;
    let seen: Vec<&str> = seen.lines().collect();
    let expected = ["314572800", "1", "50000 100000", "50", "rbps=max wbps=8388608 riops=500 wiops=500"];
    check!(seen == expected, "{seen:?}");
    // Nobody asked for these: the guest's memory and what that costs, and all of its CPUs.
    let plain = daemon.json(&["fork", "quota"])?["sandboxes"][0].clone();
    let (memory, limit) = (plain["memory_mib"].as_u64(), plain["limits"]["memory_mib"].as_u64());
    check!(limit == memory.map(|mib| mib + mib / 32 + 64), "{plain}");
    daemon.run(&["kill", "--all"])?;
    // They are cleared behind the answer.
    host()?.script("for i in $(seq 200); do ls -d /sys/fs/cgroup/forkd/sandbox-* 2>/dev/null || exit 0; sleep 0.1; done; exit 1")?;
    Ok(())
}

/// A guest that uses more memory than its sandbox may is ended, with the numbers; its neighbour is not.
pub fn end_who_uses_too_much_memory() -> TestResult {
    let daemon = daemon()?;
    let small = daemon.run(&["fork", "quota", "--memory-limit", "96M"])?;
    let neighbour = daemon.run(&["fork", "quota"])?;
    let hog = "x = bytearray(300 << 20)\nfor at in range(0, len(x), 4096): x[at] = 1";
    let hogged = daemon.output(&["eval", &small, hog], b"")?;
    check!(!hogged.status.success(), "{}", binaries::transcript(&hogged));
    let begun = Instant::now();
    let ended = loop {
        let shown = daemon.json(&["inspect", &small])?;
        if shown["state"] == "ended" {
            break shown["ended"].clone();
        }
        check!(begun.elapsed() < PATIENCE, "it goes on: {shown}");
        std::thread::sleep(Duration::from_millis(100));
    };
    check!(ended["reason"] == "out_of_memory", "{ended}");
    check!(ended["detail"].as_str().is_some_and(|detail| detail.contains("96 MiB")), "{ended}");
    check!(daemon.run(&["eval", &neighbour, "6 * 7"])? == "42", "the neighbour");
    Ok(())
}

/// What children share with their zygote is charged once, to it.
pub fn charge_what_is_shared_once() -> TestResult {
    let daemon = daemon()?;
    let ids = daemon.fork("quota", 4)?;
    let read = |name: &str| -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        Ok(host()?.script(&format!("cat /sys/fs/cgroup/forkd/{name}/memory.current"))?.trim().parse()?)
    };
    let zygote = read("zygote-quota")?;
    let mut children = Vec::new();
    for id in &ids {
        daemon.run(&["exec", id, "--", "true"])?;
        children.push(read(&format!("sandbox-{id}"))?);
    }
    print(&json!({ "measure": "charged_bytes", "zygote": zygote, "children": children }))?;
    check!(children.iter().all(|child| *child < zygote / 2), "{children:?} beside {zygote}");
    Ok(())
}

/// Half a CPU is half a CPU.
pub fn hold_back_who_spins() -> TestResult {
    let daemon = daemon()?;
    let id = daemon.run(&["fork", "quota", "--cpus", "0.25"])?;
    let spinning = "import time\nend = time.monotonic() + 8\nwhile time.monotonic() < end: pass";
    let used = |daemon: &Daemon| -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
        Ok(daemon.json(&["stats", &id])?[0]["cpu_us"].as_u64().unwrap_or(0))
    };
    let (begun, before) = (Instant::now(), used(&daemon)?);
    daemon.run(&["eval", &id, spinning])?;
    let (took, after) = (begun.elapsed(), used(&daemon)?);
    let share = (after - before) as f64 / took.as_micros() as f64;
    print(&json!({ "measure": "share_of_a_cpu", "allowed": 0.25, "used": share }))?;
    check!(share < 0.35, "it used {share} of a CPU");
    Ok(())
}
