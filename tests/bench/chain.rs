//! `make bench-chain`: what a child costs against the depth of the chain that its zygote was loaded from. The depth is paid
//! for by the load, which is measured beside it.

use std::time::Instant;

use forkd_store::Store;
use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, Zygote, boot};
use forkd_tests::engine::snapshot::{load, persist};
use forkd_tests::measure::{percentile, print};
use serde_json::json;

const MEMORY_MIB: u64 = 512;
/// What the parent has written, and what each snapshot above it writes anew.
const WARM_PAGES: u64 = (64 << 20) / 4096;
const DIFF_PAGES: u64 = (4 << 20) / 4096;
const DEPTHS: [usize; 4] = [0, 1, 4, 16];
const ROUNDS: usize = 10;
const CHILDREN: usize = 20;

fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let store = Store::new(directory.path());
    let (_process, mut vm) = boot(MEMORY_MIB << 20)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    vm.mailbox.order(Order::Dirty, FREE_MEMORY, WARM_PAGES)?;
    let mut parent = None;
    for depth in 0..=DEPTHS[DEPTHS.len() - 1] as u64 {
        if depth > 0 {
            vm.mailbox.order(Order::Add, 1, 0)?;
            vm.mailbox.order(Order::Dirty, FREE_MEMORY + depth * DIFF_PAGES / 2 * 4096, DIFF_PAGES)?;
        }
        let (mut branch, _) = vm.branch()?;
        let tag = format!("depth-{depth}");
        parent = Some(persist(&store, &mut branch.control, &tag, parent.as_ref(), Vec::new())?);
    }

    let mut zygotes = Vec::new();
    for depth in DEPTHS {
        let begun = Instant::now();
        let (process, mut zygote) = load(&store, &format!("depth-{depth}"))?;
        let load_ms = begun.elapsed().as_secs_f64() * 1e3;
        // The first pays for what all later ones find.
        spawn(&mut zygote, 1 + depth as u64)?;
        zygotes.push((depth, load_ms, process, zygote, Vec::new()));
    }
    // In turns: what the host does meanwhile meets every depth alike.
    for _ in 0..ROUNDS {
        for (depth, _, _, zygote, times) in &mut zygotes {
            let mut children = Vec::new();
            for _ in 0..CHILDREN {
                let begun = Instant::now();
                children.push(spawn(zygote, 1 + *depth as u64)?);
                times.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let mut flat = None;
    for (depth, load_ms, _, _, times) in &mut zygotes {
        times.sort_unstable_by(f64::total_cmp);
        let p50 = percentile(times, 50);
        let floor = *flat.get_or_insert(p50);
        print(&json!({
            "bench": "chain",
            "depth": depth,
            "end": "running",
            "n": times.len(),
            "p50_ms": p50,
            "p99_ms": percentile(times, 99),
            "floor_ms": floor,
            "ratio": p50 / floor,
            "load_ms": load_ms,
        }))?;
    }
    Ok(())
}

/// A child that has run guest code, and found the counter as it was at its depth.
fn spawn(zygote: &mut Zygote, expected: u64) -> Result<forkd_tests::engine::process::TinyVm, Failure> {
    let mut fork = zygote.ask()?;
    fork.mailbox.tell(Order::Add, 0, 0)?;
    let mut child = zygote.accept(fork)?.running()?;
    match child.mailbox.result()? {
        found if found == expected => Ok(child),
        found => Err(format!("a counter of {found}, expected {expected}").into()),
    }
}
