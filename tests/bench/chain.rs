//! `make bench-chain`: what a child costs against the depth of the chain that its zygote was loaded from. The depth is paid
//! for by the load, which is measured beside it. And how fast a guest reads its disk after how many branches.

use std::time::{Duration, Instant};

use forkd_engine::{Engine, SandboxHandle, Source};
use forkd_store::Store;
use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, Zygote, boot};
use forkd_tests::engine::snapshot::{load, persist};
use forkd_tests::engine::ticking::{self, Mode, Words};
use forkd_tests::engine::tiny;
use forkd_tests::measure::{percentile, print};
use serde_json::json;

const MEMORY_MIB: u64 = 512;
/// What the parent has written, and what each snapshot above it writes anew.
const WARM_PAGES: u64 = (64 << 20) / 4096;
const DIFF_PAGES: u64 = (4 << 20) / 4096;
const DEPTHS: [usize; 4] = [0, 1, 4, 16];
const ROUNDS: usize = 10;
const CHILDREN: usize = 20;

/// After how many branches a guest reads its disk.
const BRANCHES: [u64; 3] = [3, 30, 300];
/// How long it reads at a time.
const READING: Duration = Duration::from_millis(200);

fn main() -> Result<(), Failure> {
    forks()?;
    reads()
}

fn forks() -> Result<(), Failure> {
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

/// A sandbox is branched again and again while it writes all over its disk; children of some of the branches read theirs.
fn reads() -> Result<(), Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let kernel = directory.path().join("kernel");
    std::fs::write(&kernel, ticking::elf())?;
    let (runtime, engine, _) = tiny::start(directory.path())?;
    let read = async {
        let (steps, _told) = tokio::sync::mpsc::channel(16);
        engine.make(tiny::new_snapshot("warm", kernel)?, &steps).await?;
        let sandbox = fork(&engine, "warm").await?;
        let words = Words::of(sandbox.view().pid, tiny::PATIENCE)?;
        words.set_mode(Mode::WriteAll)?;
        for number in 1..=BRANCHES[BRANCHES.len() - 1] {
            // The first one has written everything there is, so that all read the same.
            let before = words.ticks()?;
            let wanted = if number == 1 { 30_000 } else { 20 };
            while words.ticks()? < before + wanted {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            sandbox.branch(Some(format!("branch-{number}").parse()?)).await?;
        }
        sandbox.remove().await?;
        let mut readers = Vec::new();
        for depth in BRANCHES {
            let layers = engine.snapshot(&format!("branch-{depth}"))?.view().record.disks.concat().len();
            let reader = fork(&engine, &format!("branch-{depth}")).await?;
            let words = Words::of(reader.view().pid, tiny::PATIENCE)?;
            words.set_mode(Mode::ReadAll)?;
            reader.pause().await?;
            readers.push((depth, layers, reader, words, Vec::new()));
        }
        for _ in 0..ROUNDS {
            for (_, _, reader, words, rates) in &mut readers {
                reader.resume().await?;
                let (begun, before) = (Instant::now(), words.ticks()?);
                tokio::time::sleep(READING).await;
                let reads = words.ticks()? - before;
                rates.push(reads as f64 / begun.elapsed().as_secs_f64());
                reader.pause().await?;
            }
        }
        let mut flat = None;
        for (depth, layers, _, _, rates) in &mut readers {
            rates.sort_unstable_by(f64::total_cmp);
            let p50 = percentile(rates, 50);
            let first = *flat.get_or_insert(p50);
            print(&json!({
                "bench": "chain",
                "branches": depth,
                "layers": layers,
                "n": rates.len(),
                "reads_per_second_p50": p50,
                "ratio": p50 / first,
            }))?;
        }
        tiny::remove_everything(&engine).await?;
        Ok(())
    };
    runtime.block_on(read)
}

async fn fork(engine: &Engine, tag: &str) -> Result<SandboxHandle, Failure> {
    let created = engine.create(tiny::request(Source::Snapshot(engine.snapshot(tag)?), 1)).await?;
    let view = created.sandboxes.first().ok_or("no sandbox")?;
    Ok(engine.sandbox(view.id().as_str())?)
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
