//! Children of one warm parent: each has its own identity, and what the parent had imported.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_engine::{Engine, SandboxHandle, SnapshotHandle, Source};
use forkd_tests::check;
use forkd_tests::engine::tiny::{remove_everything, request};
use forkd_tests::measure::{percentile, print};
use serde_json::json;
use tokio::sync::mpsc;

use super::client::Client;
use super::world::{Failure, World};

const MEMORY_MIB: u64 = 512;
/// How far a child's clock may be from the host's.
const MAX_CLOCK_ERROR: Duration = Duration::from_millis(100);
/// The time in which an idle child's memory is watched.
const IDLE: Duration = Duration::from_secs(10);

const WARM: &str =
    "import json, os, random, secrets, socket, time, uuid, numpy\nwarm = numpy.zeros(5).tolist()";
const FIRST: &str = "numpy.zeros(5).tolist()";
const COLD: &str = "import numpy\nnumpy.zeros(5).tolist()";

/// Everything in which no two children may agree.
const DIFFERENT: &str = "print(json.dumps({
    'hostname': socket.gethostname(),
    'machine_id': open('/etc/machine-id').read(),
    'boot_id': open('/proc/sys/kernel/random/boot_id').read(),
    'urandom': open('/dev/urandom', 'rb').read(16).hex(),
    'getrandom': os.getrandom(16).hex(),
    'secrets': secrets.token_hex(16),
    'random': random.random(),
    'numpy': numpy.random.rand(),
    'uuid4': str(uuid.uuid4()),
    'kernel_uuid': open('/proc/sys/kernel/random/uuid').read(),
}))";

pub async fn test(world: &World, count: u32) -> Result<(), Failure> {
    let engine = world.engine().await?;
    let tested = test_in(&engine, world, count).await;
    // VMs outlive their engine.
    remove_everything(&engine).await?;
    tested
}

async fn test_in(engine: &Engine, world: &World, count: u32) -> Result<(), Failure> {
    let (steps, mut told) = mpsc::channel(16);
    tokio::spawn(async move { while told.recv().await.is_some() {} });
    let snapshot = engine.make(world.new_snapshot("parent", MEMORY_MIB, WARM)?, &steps).await?;
    idle(engine, &snapshot).await?;
    let children = fork_all(engine, &snapshot, count).await?;
    all_differ(&children).await
}

async fn fork(engine: &Engine, snapshot: &SnapshotHandle) -> Result<(SandboxHandle, [f64; 2]), Failure> {
    let created = engine.create(request(Source::Snapshot(snapshot.clone()), 1)).await?;
    let child = created.sandboxes.first().ok_or("no child")?;
    Ok((engine.sandbox(child.id().as_str())?, [created.restored, created.ready].map(milliseconds)))
}

/// The memory that a child makes its own when nobody asks it for anything.
async fn idle(engine: &Engine, snapshot: &SnapshotHandle) -> Result<(), Failure> {
    let (child, _) = fork(engine, snapshot).await?;
    let pid = child.view().pid;
    let with_identity = guest_dirty_kib(pid)?;
    tokio::time::sleep(IDLE).await;
    print(&json!({
        "measure": "idle_child_dirtied_kib", "with_identity": with_identity, "after_10_s": guest_dirty_kib(pid)?,
    }))?;
    Ok(child.remove().await?)
}

async fn fork_all(
    engine: &Engine,
    snapshot: &SnapshotHandle,
    count: u32,
) -> Result<Vec<SandboxHandle>, Failure> {
    let mut children = Vec::new();
    let (mut running, mut ready, mut first) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..count {
        let (child, [restored, identified]) = fork(engine, snapshot).await?;
        running.push(restored);
        ready.push(identified);
        let asked = Instant::now();
        let answer = Client::new(child.agent()).python(FIRST).await?;
        first.push(milliseconds(asked.elapsed()));
        check!(answer.text == "[0.0, 0.0, 0.0, 0.0, 0.0]", "child {index}: {answer:?}");
        children.push(child);
    }
    print(&json!({ "measure": "fork_to_running_ms", "children": count, "median": median(&mut running) }))?;
    print(&json!({ "measure": "fork_to_ready_ms", "children": count, "median": median(&mut ready) }))?;
    let (warm_ms, cold_ms) = (median(&mut first), cold(children.first().ok_or("no child")?).await?);
    print(
        &json!({ "measure": "first_numpy_call_ms", "warm_child_median": warm_ms, "cold_context": cold_ms }),
    )?;
    check!(warm_ms < cold_ms, "a warm child is no faster than a cold interpreter");
    Ok(children)
}

/// How long the import takes in a new context. Its files are in the page cache: what is left is the work of importing.
async fn cold(child: &SandboxHandle) -> Result<f64, Failure> {
    let client = Client::new(child.agent());
    let context = client.create_context().await?;
    let begun = Instant::now();
    let cold = client.execute(&json!({ "code": COLD, "context_id": context })).await?;
    let cold_ms = milliseconds(begun.elapsed());
    check!(cold.text == "[0.0, 0.0, 0.0, 0.0, 0.0]", "{cold:?}");
    Ok(cold_ms)
}

/// Asks every child, with all of them alive.
async fn all_differ(children: &[SandboxHandle]) -> Result<(), Failure> {
    let mut seen: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut clock_errors = Vec::new();
    for child in children {
        let client = Client::new(child.agent());
        clock_errors.push(clock_error(&client).await?);
        let answer = client.python_json(DIFFERENT).await?;
        check!(answer["hostname"] == child.view().id().as_str(), "{answer}");
        for (name, value) in answer.as_object().ok_or("not an object")? {
            seen.entry(name.clone()).or_default().insert(value.to_string());
        }
    }
    let distinct: BTreeMap<_, _> = seen.iter().map(|(name, values)| (name, values.len())).collect();
    clock_errors.sort_by(f64::total_cmp);
    let worst = clock_errors.iter().fold(0.0, |worst: f64, error| worst.max(error.abs()));
    print(&json!({
        "measure": "children", "count": children.len(), "distinct": distinct,
        "clock_error_ms": { "worst": worst, "least": clock_errors.first(), "most": clock_errors.last() },
    }))?;
    check!(distinct.values().all(|distinct| *distinct == children.len()), "two children agree: {distinct:?}");
    check!(worst.abs() < milliseconds(MAX_CLOCK_ERROR), "a child's clock is {worst} ms off");
    Ok(())
}

/// By how many milliseconds the child's clock is ahead of the host's, as far as the time between question and answer leaves
/// no doubt.
async fn clock_error(client: &Client<'_>) -> Result<f64, Failure> {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH);
    let before = now()?;
    let answer = client.python_json("print(time.time_ns())").await?;
    let after = now()?;
    let child = Duration::from_nanos(answer.as_u64().ok_or("not a time")?);
    Ok(milliseconds(child.saturating_sub(after)) - milliseconds(before.saturating_sub(child)))
}

/// KiB of guest memory that are the process's own. Guest memory is its largest mapping.
fn guest_dirty_kib(pid: i32) -> Result<u64, Failure> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
    let field = |line: &str, name: &str| -> Option<u64> {
        line.strip_prefix(name)?.split_whitespace().next()?.parse().ok()
    };
    let mut largest = (0, 0);
    let mut size = 0;
    for line in maps.lines() {
        size = field(line, "Size:").unwrap_or(size);
        if let Some(dirty) = field(line, "Private_Dirty:") {
            largest = largest.max((size, dirty));
        }
    }
    Ok(largest.1)
}

fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    percentile(values, 50)
}
