//! `make bench-api`: N children of one snapshot through a daemon's API, from the request until all are ready, beside the engine's
//! own figure of the same run (`make bench-fork`).
//!
//! ```text
//!   bench-api ── namespaces of its own, which end with it ──▶ bench-api inside HOME
//!                                                               ├─ forkd serve      HTTP over its Unix socket; jails, networks, layers
//!                                                               ├─ agents           played here: the tiny guest has none
//!                                                               └─ a warm zygote    of the figure to compare with
//! ```
//!
//! Arguments: `[--rounds COUNT] [N…]`. What is printed of several rounds is the one in the middle.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use forkd_client::{Address, Client};
use forkd_engine::Cgroups;
use forkd_net::plan::GUEST_MAC;
use forkd_proto::control::{Net, Vsock};
use forkd_tests::alone;
use forkd_tests::api_speed::{self, median, until_it_answers, until_networks_rest};
use forkd_tests::engine::firecracker::guest;
use forkd_tests::engine::process::{Failure, Zygote};
use forkd_tests::engine::speed::{self, MEMORY_MIB, WARM_PAGES, with_warm_zygote};
use forkd_tests::engine::tiny;
use forkd_tests::linked_agents::link_agents;
use forkd_tests::measure::{available_kib, print, raise_descriptor_limit};
use forkd_tests::tiny_daemon::{BASE, TinyDaemon};
use rustix::process::{Resource, Signal, getrlimit};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

const SIZES: [u32; 4] = [1, 10, 100, 1000];
/// What the process in the namespaces is told first.
const INSIDE: &str = "inside";
/// Networks that the daemon keeps ready, as it does by itself.
const NETWORKS_READY: u32 = 128;
/// What one child takes of the host at most: descriptors of this process, processes and threads, memory.
const DESCRIPTORS: u64 = 4;
const TASKS: u64 = 10;
const MEMORY_KIB: u64 = 4 << 10;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [first, home, rest @ ..] if first == INSIDE => inside(Path::new(home), &Order::parse(rest)?),
        all => {
            // Before anything is started.
            Order::parse(all)?;
            outside(all)
        }
    }
}

/// What is to be measured.
struct Order {
    rounds: Option<u32>,
    sizes: Vec<u32>,
}

impl Order {
    fn parse(arguments: &[String]) -> Result<Order, Failure> {
        let number = |text: &String| match text.parse() {
            Ok(number @ 1..=1000) => Ok(number),
            _ => Err(format!("{text:?}: expected [--rounds COUNT] [N…], numbers from 1 to 1000")),
        };
        let (rounds, rest) = match arguments {
            [option, count, rest @ ..] if option == "--rounds" => (Some(number(count)?), rest),
            all => (None, all),
        };
        let sizes = rest.iter().map(number).collect::<Result<Vec<_>, _>>()?;
        Ok(Order { rounds, sizes: if sizes.is_empty() { SIZES.to_vec() } else { sizes } })
    }

    /// A few children are quickly made, and their times differ most.
    fn rounds(&self, n: u32) -> u32 {
        self.rounds.unwrap_or(match n {
            0..10 => 9,
            10..100 => 5,
            100..1000 => 3,
            _ => 1,
        })
    }

    fn networks_ready(&self) -> u32 {
        self.sizes.iter().copied().max().unwrap_or(0).min(NETWORKS_READY)
    }
}

/// Runs the rest where it is alone. When this returns nothing is left of it, whatever it has come to.
fn outside(arguments: &[String]) -> Result<(), Failure> {
    if !alone::is_possible() {
        return Err("namespaces of its own are needed, for networks and processes: run it as root".into());
    }
    let home = tempfile::tempdir_in("/var/tmp")?;
    let mut command = alone::contained(std::env::current_exe()?);
    command.arg(INSIDE).arg(home.path()).args(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(until_ended(command));
    if let Some(cgroup) = cgroup_of(home.path()) {
        remove_cgroup(&cgroup);
    }
    // Processes that were killed may still be ending.
    for _ in 0..50 {
        if fs::remove_dir_all(home.path()).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ended
}

async fn until_ended(command: Command) -> Result<(), Failure> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let mut inside = tokio::process::Command::from(command).kill_on_drop(true).spawn()?;
    tokio::select! {
        status = inside.wait() => match status? {
            status if status.success() => return Ok(()),
            status => return Err(status.to_string().into()),
        },
        _ = interrupted.recv() => {}
        _ = terminated.recv() => {}
    }
    inside.kill().await?;
    Err("interrupted".into())
}

fn inside(home: &Path, order: &Order) -> Result<(), Failure> {
    raise_descriptor_limit();
    alone::make_uplink()?;
    let cgroup = cgroup(home);
    let mut daemon = TinyDaemon::new(home, cgroup.as_ref().ok().cloned());
    let measured = measure(&mut daemon, order, cgroup.err().as_deref());
    let measured = measured.map_err(|error| Failure::from(format!("{error}\n{}", daemon.log())));
    let removed = daemon.remove_everything();
    measured.and(removed)
}

fn measure(daemon: &mut TinyDaemon, order: &Order, no_cgroups: Option<&str>) -> Result<(), Failure> {
    make_base(daemon)?;
    let ready = order.networks_ready();
    let options = ["--listen", "none", "--network", "required", "--dns", "192.0.2.1"];
    let networks = ready.to_string();
    daemon.launch(&[&options[..], &["--networks-ready", networks.as_str()]].concat(), &[])?;
    let client = Client::new(Address::Unix(daemon.socket()), None)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(until_it_answers(&client))?;
    let bench = Bench { runtime, client, daemon: daemon.pid()?, ready: ready.try_into()?, no_cgroups };
    // The first one pays for what all later ones find. And a thousand may take all memory of the host if one takes much.
    match bench.children(1)?.private_kib_per_child {
        ..MEMORY_KIB => {}
        much => return Err(format!("a child has {much} KiB of its own").into()),
    }
    with_warm_zygote(|zygote| {
        for n in &order.sizes {
            bench.compare(zygote, *n, order.rounds(*n))?;
        }
        Ok(())
    })?;
    daemon.end(Signal::TERM)
}

/// The snapshot has the memory, and as much of it is written, as the zygote that it is compared with.
fn make_base(daemon: &TinyDaemon) -> Result<(), Failure> {
    daemon.make_base(&guest::elf(WARM_PAGES), alone::networking(), |base| {
        let run = tiny::run_directory(&daemon.root());
        let directories = ["zygotes", "sandboxes"].map(|name| run.join(name));
        let console = directories[0].join(BASE).join("console.log");
        link_agents(&directories, &daemon.home().join("agents.sock"), move || until_warm(&console))?;
        base.shape.memory_bytes = MEMORY_MIB << 20;
        base.shape.devices.net = Some(Net { mac: GUEST_MAC, mtu: None });
        base.shape.devices.vsock = Some(Vsock { cid: 3 });
        Ok(())
    })
}

/// Waits until the guest has written its memory. Frozen before, all of its children would write it again. Whoever asks the agent
/// gives up if that takes long.
fn until_warm(console: &Path) {
    while !fs::read_to_string(console).is_ok_and(|said| said.contains(guest::WARM)) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

struct Bench<'a> {
    runtime: Runtime,
    client: Client,
    daemon: u32,
    ready: usize,
    no_cgroups: Option<&'a str>,
}

impl Bench<'_> {
    fn children(&self, n: u32) -> Result<api_speed::Made, Failure> {
        self.runtime.block_on(api_speed::children(&self.client, self.daemon, n, self.ready))
    }

    /// Both figures in turns, so that what the host does meanwhile meets both.
    fn compare(&self, zygote: &mut Zygote, n: u32, rounds: u32) -> Result<(), Failure> {
        let missing = missing(n)?;
        if !missing.is_empty() {
            return print(&json!({ "bench": "api", "n": n, "missing": missing }));
        }
        let (mut made, mut forked) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            self.runtime.block_on(until_networks_rest(&self.client, self.ready))?;
            forked.push(speed::children(zygote, n)?);
            made.push(self.children(n)?);
        }
        let made = median(made, |made| made.wall_ms).ok_or("no round")?;
        let forked = median(forked, |forked| forked.wall_ms).ok_or("no round")?;
        let mut result = json!(made);
        result["bench"] = json!("api");
        result["end"] = json!("ready");
        result["rounds"] = json!(rounds);
        result["fork_ms"] = json!(forked.wall_ms);
        result["floor_ms"] = json!(forked.floor_ms);
        result["ratio"] = json!(made.wall_ms / forked.wall_ms);
        result["cgroups"] = json!(self.no_cgroups.is_none());
        result["no_cgroups"] = json!(self.no_cgroups);
        print(&result)
    }
}

/// Limits of this host that so many children do not fit into, in words. The daemon raises its own, of descriptors.
fn missing(n: u32) -> Result<Vec<String>, Failure> {
    let n = u64::from(n);
    let file = |path: &str| fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let limits = [
        ("descriptors (ulimit -n)", getrlimit(Resource::Nofile).current, n * DESCRIPTORS),
        ("tasks (kernel.pid_max)", file("/proc/sys/kernel/pid_max"), n * TASKS),
        ("tasks (kernel.threads-max)", file("/proc/sys/kernel/threads-max"), n * TASKS),
        ("networks (user.max_net_namespaces)", file("/proc/sys/user/max_net_namespaces"), n),
        ("KiB of memory", Some(available_kib()?), n * MEMORY_KIB),
    ];
    let short = limits.into_iter().filter_map(|(what, most, needed)| {
        most.filter(|most| *most < needed).map(|most| format!("{what}: {most}, of {needed}"))
    });
    Ok(short.collect())
}

/// The cgroup of the daemon's VM processes, or why it has none.
fn cgroup(home: &Path) -> Result<PathBuf, String> {
    let path = cgroup_of(home).ok_or("cgroup v2 is not mounted")?;
    match Cgroups::prepare(&path, home) {
        Ok(_) => Ok(path),
        Err(error) => {
            remove_cgroup(&path);
            Err(error.to_string())
        }
    }
}

/// What the cgroup is called, which belongs to this home.
fn cgroup_of(home: &Path) -> Option<PathBuf> {
    let name = home.file_name()?.to_str()?.trim_start_matches('.');
    Some(forkd_host::cgroup::mount_point()?.join(format!("forkd-bench-{name}")))
}

/// Removes it with those below, whose processes may still be ending.
fn remove_cgroup(path: &Path) {
    for _ in 0..50 {
        let below = fs::read_dir(path).into_iter().flatten().flatten();
        for directory in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let _ = fs::remove_dir(directory.path());
        }
        if !path.exists() || fs::remove_dir(path).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Option<(Option<u32>, Vec<u32>)> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        Order::parse(&words).ok().map(|order| (order.rounds, order.sizes))
    }

    #[test]
    fn arguments_are_sizes() {
        assert_eq!(parsed(&[]), Some((None, SIZES.to_vec())));
        assert_eq!(parsed(&["1", "2"]), Some((None, vec![1, 2])));
        assert_eq!(parsed(&["--rounds", "3", "100"]), Some((Some(3), vec![100])));
        for wrong in
            [&["0"][..], &["1001"], &["x"], &["--rounds"], &["--rounds", "0"], &["1", "--rounds", "1"]]
        {
            assert_eq!(parsed(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_is_short_is_named() {
        assert!(missing(u32::MAX).unwrap().iter().any(|what| what.contains("memory")));
    }
}
