//! Which cgroup pays for the memory of a sandbox that is branched.

use std::time::{Duration, Instant};

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::measure::print;
use forkd_tests::scale::{count, is_soak};
use forkd_tests::suite::host;
use forkd_tests::{TestResult, binaries, check};
use serde_json::json;

type Error = Box<dyn std::error::Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(180);
/// The daemon rests between two networks that it makes, and no longer than this.
const BETWEEN_NETWORKS: Duration = Duration::from_secs(6);
const MIB: u64 = 1 << 20;

/// Bytes, and the number of dying cgroups.
struct Used {
    /// What forkd's cgroup is charged.
    charged: u64,
    /// Memory of processes on the whole host, with their page tables and stacks, without the daemon's own, which is in no cgroup of
    /// sandboxes.
    processes: u64,
    /// What is not available on the host. The kernel's own memory is in it: networks, journals, caches.
    unavailable: u64,
    dying: u64,
}

fn used() -> Result<Used, Error> {
    // ext4's journal keeps metadata in memory that is on disk already, charged to whoever has read it, until its next commit. On a quiet
    // host that may not come, so there is something to commit.
    let said = host()?.script(
        "sync; touch /var/tmp/committed; sync; echo 3 > /proc/sys/vm/drop_caches; cd /sys/fs/cgroup/forkd
         cat memory.current
         awk '$1 ~ /^(AnonPages|Shmem|PageTables|SecPageTables|KernelStack):/ { all += $2 } END { printf \"%.0f\\n\", all * 1024 }' /proc/meminfo
         awk '$1 == \"MemTotal:\" { all = $2 } $1 == \"MemAvailable:\" { printf \"%.0f\\n\", (all - $2) * 1024 }' /proc/meminfo
         grep -lx forkd /proc/[0-9]*/comm | sed s/comm/status/ | xargs awk '$1 == \"RssAnon:\" { all += $2 } END { print all * 1024 }'
         awk '$1 == \"nr_dying_descendants\" { print $2 }' cgroup.stat",
    )?;
    let numbers: Vec<u64> = said.lines().map(|line| line.trim().parse()).collect::<Result<_, _>>()?;
    let [charged, processes, unavailable, daemon, dying] = numbers[..] else {
        return Err(format!("not five numbers: {said}").into());
    };
    let [processes, unavailable] = [processes, unavailable].map(|bytes| bytes.saturating_sub(daemon));
    Ok(Used { charged, processes, unavailable, dying })
}

fn cgroups() -> Result<Vec<String>, Error> {
    let listed = host()?.script("cd /sys/fs/cgroup/forkd; ls -d sandbox-* zygote-* 2>/dev/null || true")?;
    Ok(listed.lines().map(str::to_owned).collect())
}

fn until(what: &str, mut holds: impl FnMut() -> Result<bool, Error>) -> TestResult {
    let begun = Instant::now();
    while !holds()? {
        check!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Waits until the daemon has made the networks that it keeps ready. Each takes a megabyte or so of the kernel's, which is no sandbox's.
fn until_networks_wait() -> TestResult {
    let count = || Ok::<usize, Error>(host()?.script("ls /run/netns | wc -l")?.trim().parse()?);
    let (mut found, mut since) = (count()?, Instant::now());
    until("all networks are made", || {
        let now = count()?;
        if now != found {
            (found, since) = (now, Instant::now());
        }
        Ok(since.elapsed() > BETWEEN_NETWORKS)
    })
}

/// A sandbox rewrites much of its memory between branches: each branch pays for what it keeps, the sandbox for what it has,
/// and nothing is charged that the host does not use.
pub fn follows_the_memory_of_branches() -> TestResult {
    let daemon = Daemon::start()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "charge", "--memory", "512M"])?;
    let (branches, rewritten_mib) = (count(3, 20), u64::from(count(64, 200)));
    let dying = used()?.dying;
    let id = daemon.run(&["fork", "charge"])?;
    let eval = |code: &str| daemon.run(&["eval", &id, "--timeout", "300", code]);
    eval(&format!("a = bytearray({rewritten_mib} << 20)"))?;
    // A piece at a time: the guest has no memory for a second copy of all of it.
    let rewrite = |number: u32| {
        let byte = number % 256;
        eval(&format!(
            "piece = bytes([{byte}]) * (1 << 20)\nfor at in range(0, len(a), 1 << 20): a[at:at + (1 << 20)] = piece"
        ))
    };
    rewrite(255)?;
    until_networks_wait()?;
    let (before, cpu) = (used()?, cpu_us(&daemon, &id)?);
    let pid = daemon.json(&["inspect", &id])?["pid"].to_string();
    for number in 0..branches {
        daemon.run(&["branch", &id, "--tag", &format!("charge-{number}")])?;
        rewrite(number)?;
        let at = host()?.script(&format!("cat /proc/{pid}/cgroup"))?;
        check!(at.trim().ends_with(&format!("sandbox-{id}.{}", number + 2)), "{at}");
    }
    let shown = daemon.json(&["inspect", &id])?;
    check!(shown["state"] == "running", "{shown}");
    check!(cpu_us(&daemon, &id)? > cpu, "its CPU time begins anew");
    // Written to disk, they are not half in the page cache.
    let mut loaded = 0;
    for number in 0..branches {
        let inspect = || daemon.json(&["snapshot", "inspect", &format!("charge-{number}")]);
        until("a branch is on disk", || Ok(inspect()?["status"] == "ready"))?;
        // The oldest may have been evicted, and hold nothing: snapshots have a part of the host's memory.
        loaded += u64::from(inspect()?["loaded"] == true);
    }
    check!(loaded >= u64::from(branches / 2), "only {loaded} of {branches} branches have memory");
    let after = used()?;
    let charged = after.charged.abs_diff(before.charged);
    let processes = after.processes.abs_diff(before.processes);
    let unavailable = after.unavailable.abs_diff(before.unavailable);
    let least = loaded * rewritten_mib * MIB * 9 / 10;
    let own: u64 = host()?
        .script(&format!("cat /sys/fs/cgroup/forkd/sandbox-{id}.{}/memory.current", branches + 1))?
        .trim()
        .parse()?;
    let stats = daemon.json(&["stats", &id])?[0].clone();
    print(&json!({
        "measure": "charge", "branches": branches, "loaded": loaded, "charged_bytes": charged, "processes_bytes": processes,
        "unavailable_bytes": unavailable,
        "sandbox_charged_bytes": own, "sandbox_private_bytes": stats["memory_private_bytes"],
    }))?;
    check!(charged >= least, "{charged} bytes for {loaded} branches");
    let is_close = |used: u64| charged.abs_diff(used) <= charged.max(used) / 10;
    check!(is_close(processes), "{charged} charged, {processes} used");
    // With few branches, what the kernel does for itself meanwhile is more than a tenth of it.
    check!(!is_soak() || is_close(unavailable), "{charged} charged, {unavailable} not available");
    check!(own < 2 * rewritten_mib * MIB, "the sandbox pays for its branches: {own}");
    check!(stats["memory_shared_with"] == format!("charge-{}", branches - 1), "{stats}");

    // Threads of the kernel have moved with the VM: no cgroup of a branch is kept by one.
    for number in 0..branches {
        daemon.run(&["snapshot", "rm", &format!("charge-{number}")])?;
    }
    // The snapshot's own may have been evicted.
    let expected = [format!("sandbox-{id}.{}", branches + 1), "zygote-charge".to_owned()];
    until("the cgroups of branches are gone", || {
        let left = cgroups()?;
        Ok(left.contains(&expected[0]) && left.iter().all(|cgroup| expected.contains(cgroup)))
    })
    .map_err(|error| format!("{error}: {:?}", cgroups()))?;
    check!(eval("len(a)")? == (rewritten_mib << 20).to_string(), "it lives");
    daemon.run(&["kill", &id])?;
    until("no dying cgroups are left", || Ok(used()?.dying <= dying))
}

fn cpu_us(daemon: &Daemon, id: &str) -> Result<u64, Error> {
    Ok(daemon.json(&["stats", id])?[0]["cpu_us"].as_u64().unwrap_or(0))
}

/// A daemon that is killed at any moment of a branch: the next one finds which cgroup each process is in, and none is left over.
pub fn survives_the_daemon() -> TestResult {
    let mut daemon = Daemon::start()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "charge"])?;
    let id = daemon.run(&["fork", "charge"])?;
    let pid = daemon.json(&["inspect", &id])?["pid"].to_string();
    for round in 0..count(3, 30) {
        let tag = format!("killed-{round}");
        let mut branch = daemon.command(&["branch", &id, "--tag", &tag]).spawn()?;
        std::thread::sleep(Duration::from_millis(u64::from(round) * 37 % 400));
        daemon.kill_and_start()?;
        branch.wait()?;
        check!(daemon.run(&["eval", &id, "6 * 7"])? == "42", "round {round}");
        let path = host()?.script(&format!("cat /proc/{pid}/cgroup"))?;
        let mine = path.trim().rsplit('/').next().unwrap_or_default().to_owned();
        let limit = host()?.script(&format!("cat /sys/fs/cgroup/forkd/{mine}/memory.max"))?;
        let allowed = daemon.json(&["inspect", &id])?["limits"]["memory_mib"].as_u64().unwrap_or(0);
        let sharing = host()?.script(&format!("grep -c . /sys/fs/cgroup/forkd/{mine}/cgroup.procs"))?;
        print(
            &json!({ "round": round, "cgroup": mine, "limit": limit.trim(), "processes": sharing.trim() }),
        )?;
        check!(mine.starts_with(&format!("sandbox-{id}")), "{path}");
        check!(limit.trim() == (allowed * MIB).to_string(), "{limit} of {allowed} MiB");
    }
    let snapshots = daemon.run(&["snapshot", "ls", "--quiet"])?;
    for tag in snapshots.lines().filter(|tag| tag.starts_with("killed-")) {
        daemon.run(&["snapshot", "rm", tag])?;
    }
    daemon.run(&["kill", &id])?;
    // What the last daemon could not remove, the next one does.
    daemon.kill_and_start()?;
    until("only the snapshot's cgroup is left", || Ok(cgroups()? == ["zygote-charge"]))
}

/// Every request that runs when a sandbox is out of memory is answered with that.
pub fn is_told_to_everybody_when_it_is_too_much() -> TestResult {
    let daemon = Daemon::start()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "charge", "--no-wait"])?;
    let id = daemon.run(&["fork", "charge", "--memory-limit", "96M"])?;
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let mut command = daemon.command(&["exec", &id, "--timeout", "600", "--", "sleep", "600"]);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn()
        })
        .collect::<Result<_, _>>()?;
    std::thread::sleep(Duration::from_secs(10));
    let hog = "x = bytearray(300 << 20)\nfor at in range(0, len(x), 4096): x[at] = 1";
    let hogged = daemon.output(&["eval", &id, hog], b"")?;
    let mut all = vec![hogged];
    for one in waiting {
        all.push(one.wait_with_output()?);
    }
    for output in all {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = "the sandbox ended while the request ran: out of memory (limit 96 MiB, peak ";
        check!(!output.status.success() && said.contains(expected), "{}", binaries::transcript(&output));
    }
    Ok(())
}
