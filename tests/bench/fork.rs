//! `make bench-fork`: N children of one zygote, from the first request until the last child has run guest code and said so,
//! beside the floor (bare clone and KVM loop) of the same run, and beside as many restores by Firecracker where there is one.

use std::collections::VecDeque;
use std::process::Command;
use std::time::Instant;

use forkd_tests::binaries;
use forkd_tests::engine::firecracker::{self, Snapshot};
use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, Forked, Pending, TinyVm, Zygote, boot};
use forkd_tests::measure::{percentile, print, private_kib, raise_descriptor_limit, settled_available_kib};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};

const MEMORY_MIB: u64 = 512;
/// What the parent has written before it is frozen: an interpreter with its imports.
const WARM_PAGES: u64 = (64 << 20) / 4096;
/// Requests whose replies are not taken yet.
const IN_FLIGHT: usize = 32;
const SIZES: [u32; 4] = [1, 10, 100, 1000];
/// More restores one after another take longer than anybody wants to wait.
const ONE_BY_ONE: u32 = 100;

fn main() -> Result<(), Failure> {
    raise_descriptor_limit();
    let snapshot =
        firecracker::find().map(|program| Snapshot::make(&program, MEMORY_MIB, WARM_PAGES)).transpose()?;
    let mut results = Vec::new();
    {
        let (_process, mut vm) = boot(MEMORY_MIB << 20)?;
        vm.mailbox.order(Order::Add, 1, 0)?;
        vm.mailbox.order(Order::Dirty, FREE_MEMORY, WARM_PAGES)?;
        let mut zygote = vm.freeze()?;
        // The first fork pays for what all later ones find: page tables, KVM's caches.
        drop(zygote.fork()?);
        for n in SIZES {
            results.push((n, fork(&mut zygote, n)?));
        }
    }
    // Not in between: the kernel takes back the memory of many VMs long after they have ended, and what it takes back would
    // be missing in the next children's.
    if let Some(snapshot) = &snapshot {
        snapshot.restore(1)?;
    }
    for (n, mut result) in results {
        if let Some(snapshot) = &snapshot {
            result["firecracker_ms"] = json!(snapshot.restore(n)?.as_secs_f64() * 1e3);
            if n <= ONE_BY_ONE {
                let one_by_one = snapshot.restore_one_by_one(n)?;
                result["firecracker_one_by_one_ms"] = json!(one_by_one.as_secs_f64() * 1e3);
            }
        }
        print(&result)?;
    }
    Ok(())
}

/// Forks `n` children and measures.
fn fork(zygote: &mut Zygote, n: u32) -> Result<Value, Failure> {
    let floor_ms = floor(n)?;
    let available_before = settled_available_kib()?;
    let begun = Instant::now();
    let mut pending = VecDeque::new();
    let mut forked = Vec::new();
    for _ in 0..n {
        let asked = Instant::now();
        let mut fork = zygote.ask()?;
        // The order is there before the child is: it runs guest code as soon as it can.
        fork.mailbox.tell(Order::Add, 1, 0)?;
        pending.push_back((asked, fork));
        if pending.len() > IN_FLIGHT {
            forked.extend(accept_oldest(zygote, &mut pending)?);
        }
    }
    while !pending.is_empty() {
        forked.extend(accept_oldest(zygote, &mut pending)?);
    }
    let mut children = Vec::new();
    let mut times = Vec::new();
    for (asked, fork) in forked {
        let mut child = fork.running()?;
        if child.mailbox.result()? != 2 {
            return Err("a child has another past".into());
        }
        times.push(asked.elapsed().as_secs_f64() * 1e3);
        children.push(child);
    }
    let wall_ms = begun.elapsed().as_secs_f64() * 1e3;
    let taken = available_before.saturating_sub(settled_available_kib()?);
    let mut private = 0;
    for child in &children {
        private += private_kib(child.pid)?;
    }
    end(children)?;
    times.sort_unstable_by(f64::total_cmp);
    Ok(json!({
        "bench": "fork",
        "n": n,
        "end": "running",
        "wall_ms": wall_ms,
        "floor_ms": floor_ms,
        "ratio": wall_ms / floor_ms,
        "p50_ms": percentile(&times, 50),
        "p99_ms": percentile(&times, 99),
        "private_kib_per_child": private / u64::from(n),
        "kernel_kib_per_child": taken.saturating_sub(private) / u64::from(n),
        "firecracker_ms": null,
        "firecracker_one_by_one_ms": null,
    }))
}

type Asked<T> = (Instant, T);

fn accept_oldest(
    zygote: &mut Zygote,
    pending: &mut VecDeque<Asked<Pending>>,
) -> Result<Option<Asked<Forked>>, Failure> {
    let Some((asked, fork)) = pending.pop_front() else {
        return Ok(None);
    };
    Ok(Some((asked, zygote.accept(fork)?)))
}

/// Lets the children go and waits until they have gone: what is measured next has the host for itself.
fn end(children: Vec<TinyVm>) -> Result<(), Failure> {
    const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };
    let processes: Vec<_> = children.into_iter().filter_map(|child| child.pidfd).collect();
    for process in &processes {
        if poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&PATIENCE))? == 0 {
            return Err("a child does not end when its sockets are closed".into());
        }
    }
    Ok(())
}

fn floor(n: u32) -> Result<f64, Failure> {
    let mut command = Command::new(binaries::directory().join("forkd-vmm"));
    let output = command.args(["floor", &n.to_string(), &MEMORY_MIB.to_string()]).output()?;
    if !output.status.success() {
        return Err(binaries::transcript(&output).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}
