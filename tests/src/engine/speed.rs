//! What the benchmarks and the demo measure of the engine with a tiny guest: children of one zygote, pauses of branches.

use std::collections::VecDeque;
use std::process::Command;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use super::guest::{FREE_MEMORY, Order};
use super::process::{Failure, Forked, Pending, TinyVm, Zygote, boot};
use crate::binaries;
use crate::measure::{percentile, private_kib, settled_available_kib};

pub const MEMORY_MIB: u64 = 512;
/// What the parent has written before it is frozen: an interpreter with its imports.
pub const WARM_PAGES: u64 = (64 << 20) / 4096;
/// Requests whose replies are not taken yet.
const IN_FLIGHT: usize = 32;
/// Memory of the VM whose branches are measured.
const BRANCHED_MIB: u64 = 2048;

/// Children of one zygote, from the first request until the last child has run guest code and said so.
#[derive(Debug, Clone, Serialize)]
pub struct Children {
    pub n: u32,
    pub wall_ms: f64,
    /// As many bare clones that make a KVM VM and run it, in the same run.
    pub floor_ms: f64,
    pub ratio: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub private_kib_per_child: u64,
    pub kernel_kib_per_child: u64,
}

/// How long a VM was paused by branches.
#[derive(Debug, Clone, Serialize)]
pub struct Pauses {
    pub private_mib: u64,
    pub guest: &'static str,
    pub n: usize,
    pub pause_p50_ms: f64,
    pub pause_p99_ms: f64,
}

/// Runs `work` with a frozen parent that has forked once: the first fork pays for what all later ones find, page tables and
/// KVM's caches.
pub fn with_warm_zygote<T>(work: impl FnOnce(&mut Zygote) -> Result<T, Failure>) -> Result<T, Failure> {
    let (_process, mut vm) = boot(MEMORY_MIB << 20)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    vm.mailbox.order(Order::Dirty, FREE_MEMORY, WARM_PAGES)?;
    let mut zygote = vm.freeze()?;
    drop(zygote.fork()?);
    work(&mut zygote)
}

/// Forks `n` children and measures.
pub fn children(zygote: &mut Zygote, n: u32) -> Result<Children, Failure> {
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
    Ok(Children {
        n,
        wall_ms,
        floor_ms,
        ratio: wall_ms / floor_ms,
        p50_ms: percentile(&times, 50),
        p99_ms: percentile(&times, 99),
        private_kib_per_child: private / u64::from(n),
        kernel_kib_per_child: taken.saturating_sub(private) / u64::from(n),
    })
}

/// Branches a VM `n` times that has written `private_mib`, at rest or while it writes.
pub fn pauses(private_mib: u64, writing: bool, n: usize) -> Result<Pauses, Failure> {
    let (_process, mut vm) = boot(BRANCHED_MIB << 20)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    let pages = private_mib << 20 >> 12;
    vm.mailbox.order(Order::Dirty, FREE_MEMORY, pages)?;
    let mut pauses = Vec::new();
    for _ in 0..n {
        if writing {
            // Still under way when the branch comes.
            vm.mailbox.tell(Order::Dirty, FREE_MEMORY, pages.max(1000))?;
        }
        let (zygote, pause) = vm.branch()?;
        pauses.push(pause.as_secs_f64() * 1e3);
        if writing {
            vm.mailbox.result()?;
        }
        // After the guest has written it all: what the branch shares with it must be copied. And before the next branch: the
        // teardown of this one's memory would be part of that one's pause.
        zygote.end()?;
    }
    pauses.sort_unstable_by(f64::total_cmp);
    Ok(Pauses {
        private_mib,
        guest: if writing { "writing" } else { "idle" },
        n,
        pause_p50_ms: percentile(&pauses, 50),
        pause_p99_ms: percentile(&pauses, 99),
    })
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
