//! `make bench-load`: how long the first fork of a snapshot takes that no process has, beside the least that such a load has to do: to copy
//! and to hash the same bytes, with as many threads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::Instant;

use forkd_store::{Digest, Store};
use forkd_tests::engine::guest::{FREE_MEMORY, Order};
use forkd_tests::engine::process::{Failure, boot};
use forkd_tests::engine::snapshot::{load, persist};
use forkd_tests::measure::{percentile, print};
use serde_json::json;

const MEMORY_MIB: u64 = 512;
const CONTENTS_MIB: u64 = 115;
const FRAME: usize = 2 << 20;
const THREADS: usize = 2;
const ROUNDS: usize = 15;
/// The limit of `first_fork_over_floor`.
const BUDGET: f64 = 1.5;

fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let store = Store::new(directory.path());
    let (_process, mut vm) = boot(MEMORY_MIB << 20)?;
    vm.mailbox.order(Order::Add, 1, 0)?;
    vm.mailbox.order(Order::Dirty, FREE_MEMORY, (CONTENTS_MIB << 20) / 4096)?;
    let mut zygote = vm.freeze()?;
    let begun = Instant::now();
    let stored = persist(&store, &mut zygote.control, "base", None, Vec::new())?;
    let persist_ms = begun.elapsed().as_secs_f64() * 1e3;
    let memory = File::open(directory.path().join("base/memory.bin"))?;
    let mut copy = vec![0; usize::try_from(stored.manifest().memory.size)?];
    floor(&memory, &mut copy)?;
    let (mut loads, mut forks, mut floors) = (Vec::new(), Vec::new(), Vec::new());
    // In turns: what the host does meanwhile meets both alike.
    for _ in 0..ROUNDS {
        floors.push(floor(&memory, &mut copy)?);
        let begun = Instant::now();
        let (_loaded, mut zygote) = load(&store, "base")?;
        loads.push(begun.elapsed().as_secs_f64() * 1e3);
        zygote.fork()?.mailbox.order(Order::Add, 0, 0)?;
        forks.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let p50 = |times: &mut Vec<f64>| {
        times.sort_unstable_by(f64::total_cmp);
        percentile(times, 50)
    };
    let (load_ms, first_fork_ms, floor_ms) = (p50(&mut loads), p50(&mut forks), p50(&mut floors));
    print(&json!({
        "bench": "load",
        "end": "the first child has run",
        "memory_mib": MEMORY_MIB,
        "contents_mib": stored.manifest().memory.size >> 20,
        "n": ROUNDS,
        "persist_ms": persist_ms,
        "load_ms": load_ms,
        "first_fork_ms": first_fork_ms,
        "floor_ms": floor_ms,
        "load_over_floor": load_ms / floor_ms,
        "first_fork_over_floor": first_fork_ms / floor_ms,
        "first_fork_budget": BUDGET,
        "first_fork_within_budget": first_fork_ms / floor_ms <= BUDGET,
    }))
}

/// Copies a file into memory that is there already, and hashes it, 2 MiB at a time. In milliseconds.
fn floor(file: &File, copy: &mut [u8]) -> Result<f64, Failure> {
    let begun = Instant::now();
    let frames: Vec<_> = (0..).zip(copy.chunks_mut(FRAME)).collect();
    let share = frames.len().div_ceil(THREADS);
    let mut frames = frames.into_iter();
    let shares: Vec<Vec<_>> = (0..THREADS).map(|_| frames.by_ref().take(share).collect()).collect();
    thread::scope(|scope| {
        let work = |share: Vec<(u64, &mut [u8])>| {
            for (index, frame) in share {
                file.read_exact_at(frame, index * FRAME as u64)?;
                std::hint::black_box(Digest::of(frame));
            }
            Ok::<_, std::io::Error>(())
        };
        let threads: Vec<_> = shares.into_iter().map(|share| scope.spawn(move || work(share))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| "a thread panicked")?.map_err(Failure::from))
    })?;
    Ok(begun.elapsed().as_secs_f64() * 1e3)
}
