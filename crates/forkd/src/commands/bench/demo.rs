//! `forkd bench demo`: the main job, from nothing.
//!
//! ```text
//!   image (Debian, Python, numpy) ─▶ boot, import numpy ─▶ snapshot ─▶ branches ─▶ n children, a result of each ─▶ cold boots
//!                                                              └────▶ one that computes ─▶ branch ─▶ both compute on
//! ```

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use forkd_api::code::Language;
use forkd_api::sandbox::{BranchSandbox, CreateSandboxes};
use forkd_api::snapshot::{CreateSnapshot, RemoveSnapshot, Snapshot, WarmUp};
use forkd_client::Client;
use serde::Serialize;

use super::api::{self, Plan, Report, eval_of, evaluate};
use super::chart::{self, Bar, human};
use crate::arguments::{BenchDemoOptions, SnapshotShape};
use crate::commands::{asynchronously, fork, image, print, print_json, say, snapshot};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::bytes;
use crate::signals::Signals;
use crate::table::{Side, Table};

const IMAGE: &str = "forkd-demo:latest";
const PACKAGES: [&str; 2] = ["python3", "python3-numpy"];
const TAG: &str = "forkd-demo";
const MEMORY_MIB: u64 = 512;
/// What every child evaluates, in an interpreter that has numpy already.
const CODE: &str = "numpy.zeros(5).tolist()";
const RESULT: &str = "[0.0, 0.0, 0.0, 0.0, 0.0]";
/// A computation that runs in the background.
const COMPUTE: &str = "\
import threading, time
steps, total = 0, numpy.zeros(5)
def compute():
    global steps, total
    while True:
        total = total + numpy.ones(5)
        steps += 1
        time.sleep(0.01)
threading.Thread(target=compute, daemon=True).start()";
/// How far it is: all of it is there, or numpy's sum would not be five times the number of steps.
const PROGRESS: &str = "int(total.sum()) // 5";
/// Between two looks at how far both are.
const BETWEEN: Duration = Duration::from_millis(500);

#[derive(Debug, Serialize)]
struct Demo {
    version: String,
    /// Whether the daemon's host is an emulator.
    emulated: bool,
    vcpus: u8,
    memory_mib: u64,
    /// From the boot until the warm parent was frozen, if it had to be made.
    parent_ms: Option<f64>,
    children: Report,
    branch: MidComputation,
}

/// Steps of the computation that was branched.
#[derive(Debug, Serialize)]
struct MidComputation {
    before: u64,
    /// Of each side, right after the branch and somewhat later.
    original: [u64; 2],
    branch: [u64; 2],
    /// The pause of the original.
    pause_us: Option<u64>,
}

pub fn run(options: &BenchDemoOptions) -> Result<Exit, CliError> {
    let image = options.image.clone().unwrap_or_else(|| IMAGE.to_owned());
    prepare(options)?;
    let demo = asynchronously(async {
        let client = daemon::find_or_start(&options.daemon).await?;
        show(&client, &image, options).await
    })?;
    write(&demo, &options.out)?;
    if options.output.json {
        print_json(&demo)?
    } else {
        print(&table(&demo))?
    }
    Ok(Exit::Success)
}

/// Sees to it that there are a daemon and the image.
fn prepare(options: &BenchDemoOptions) -> Result<(), CliError> {
    let start = || asynchronously(async { daemon::find_or_start(&options.daemon).await.map(drop) });
    let make = || match &options.image {
        Some(_) => Ok(()),
        None => image::debian::ensure(&options.daemon, IMAGE, &PACKAGES),
    };
    // A new machine's daemon reads this host's library: the image can be made meanwhile. Of any other daemon, where it is decides
    // where the image is made.
    if asynchronously(daemon::will_be_in_machine(&options.daemon))? {
        return std::thread::scope(|scope| {
            let made = scope.spawn(make);
            let started = start();
            let made = made.join().unwrap_or_else(|_| Err(failed("the image was not made")));
            started.and(made)
        });
    }
    start()?;
    make()
}

async fn show(client: &Client, image: &str, options: &BenchDemoOptions) -> Result<Demo, CliError> {
    let version = client.version().await?;
    say(if version.emulated {
        "forkd: emulated CPU in the machine: times are many times those of a host with KVM, only ratios are meaningful"
    } else {
        "forkd: native KVM"
    });
    let (parent, parent_ms) = parent(client, image).await?;
    say(&format!("forkd: {} children of snapshot {TAG}, each evaluates {CODE}", options.n));
    let (n, branches, cold_boots) = (options.n, options.branches, options.cold_boots);
    let plan = Plan { snapshot: TAG, n, code: CODE, branches, cold_boots, singles: 0, counted: false };
    let children = api::measure(client, plan).await?;
    if !children.results.iter().eq([RESULT]) {
        return Err(failed(&format!("{CODE} is not {RESULT} everywhere: {:?}", children.results)));
    }
    say("forkd: a branch in the middle of a computation");
    Ok(Demo {
        version: version.version,
        emulated: version.emulated,
        vcpus: parent.vcpus,
        memory_mib: parent.memory_mib,
        parent_ms,
        children,
        branch: mid_computation(client).await?,
    })
}

/// The warm parent, which is made the first time.
async fn parent(client: &Client, image: &str) -> Result<(Snapshot, Option<f64>), CliError> {
    match client.snapshot(TAG).await {
        Ok(snapshot) => return Ok((snapshot, None)),
        Err(error) if error.is_not_found() => {}
        Err(error) => return Err(error.into()),
    }
    let shape = SnapshotShape {
        vcpus: None,
        memory: Some(MEMORY_MIB),
        disk: None,
        cpu: None,
        no_network: false,
        kernel: None,
    };
    let wanted = CreateSnapshot {
        tag: Some(TAG.to_owned()),
        warm_up: vec![WarmUp { language: Language::Python, code: "import numpy".to_owned() }],
        // It can be forked from at once; it is written to disk meanwhile, when the CPU is idle.
        wait: false,
        ..snapshot::make::of_image(image, &shape)
    };
    let begun = Instant::now();
    let made = snapshot::make::make(client, &wanted).await?;
    Ok((made, Some(api::ms(begun.elapsed()))))
}

async fn mid_computation(client: &Client) -> Result<MidComputation, CliError> {
    let mut signals = Signals::new()?;
    let of = |tag: &str| CreateSandboxes { snapshot_tag: Some(tag.to_owned()), n: 1, ..Default::default() };
    let first = async |wanted: CreateSandboxes, signals: &mut Signals| {
        let mut created = fork::create(client, &wanted, signals).await?;
        created.sandboxes.pop().map(|sandbox| sandbox.id).ok_or_else(|| failed("the daemon made no sandbox"))
    };
    let original = first(of(TAG), &mut signals).await?;
    let mut others = (None, None);
    let seen = async {
        evaluate(client, &original, &eval_of(COMPUTE)).await?;
        tokio::time::sleep(BETWEEN).await;
        let before = progress(client, &original).await?;
        let branch = client.branch(&original, &BranchSandbox::default()).await?;
        others.0 = Some(branch.tag.clone());
        let child = first(of(&branch.tag), &mut signals).await?;
        others.1 = Some(child.clone());
        let soon = [progress(client, &original).await?, progress(client, &child).await?];
        tokio::time::sleep(BETWEEN).await;
        let later = [progress(client, &original).await?, progress(client, &child).await?];
        Ok(MidComputation {
            before,
            original: [soon[0], later[0]],
            branch: [soon[1], later[1]],
            pause_us: branch.pause_us,
        })
    };
    let seen: Result<MidComputation, CliError> = seen.await;
    // Also when something failed: nothing stays.
    let (tag, child) = others;
    if let Some(child) = child {
        fork::remove(client, &child).await;
    }
    fork::remove(client, &original).await;
    if let Some(tag) = tag {
        client.remove_snapshot(&tag, RemoveSnapshot::default()).await?;
    }
    let seen = seen?;
    let goes_on = |[soon, later]: [u64; 2]| seen.before <= soon && soon < later;
    if !goes_on(seen.original) || !goes_on(seen.branch) {
        return Err(failed(&format!("a side of the branch does not compute on: {seen:?}")));
    }
    Ok(seen)
}

async fn progress(client: &Client, id: &str) -> Result<u64, CliError> {
    let text = evaluate(client, id, &eval_of(PROGRESS)).await?.unwrap_or_default();
    text.trim().parse().map_err(|_| failed(&format!("{id} does not say how far it is: {text:?}")))
}

fn failed(why: &str) -> CliError {
    CliError::Io("show the demo", std::io::Error::other(why.to_owned()))
}

fn write(demo: &Demo, directory: &Path) -> Result<(), CliError> {
    let json =
        serde_json::to_string_pretty(demo).map_err(|error| CliError::Io("write JSON", error.into()))?;
    let written = fs::create_dir_all(directory)
        .and_then(|()| fs::write(directory.join("demo.json"), json + "\n"))
        .and_then(|()| fs::write(directory.join("demo.svg"), picture(demo)));
    written.map_err(|error| CliError::Io("write the demo's results", error))
}

fn picture(demo: &Demo) -> String {
    let Demo { children, .. } = demo;
    let n = children.n;
    let bar = |label: String, ms| Bar { label, ms, is_reference: false };
    let mut bars = Vec::new();
    if let Some(cold) = &children.cold_boot {
        let all = cold.p50_ms * f64::from(n);
        bars.push(Bar { label: format!("{n} cold boots (1 × {n})"), ms: all, is_reference: true });
        bars.push(Bar { label: "1 cold boot, agent answers".into(), ms: cold.p50_ms, is_reference: true });
    }
    bars.push(bar(format!("{n} forks, every VM runs"), children.restored_ms));
    bars.push(bar(format!("{n} forks, every agent has answered"), children.ready_here_ms));
    bars.push(bar(format!("{n} forks, every result has arrived"), children.output_ms));
    let place = if demo.emulated { "in the machine (emulated CPU)" } else { "on KVM" };
    let below = format!("Python with numpy, {} MiB each, {place}, forkd {}", demo.memory_mib, demo.version);
    chart::render(&format!("{n} sandboxes from one warm parent"), &below, &bars)
}

fn table(demo: &Demo) -> String {
    let Demo { children, branch, .. } = demo;
    let n = children.n;
    let mut table = Table::new([("WHAT", Side::Left), ("TIME", Side::Right), ("EACH", Side::Right)]);
    let each = |ms: f64| human(ms / f64::from(n.max(1)));
    if let Some(cold) = &children.cold_boot {
        let what = format!("cold boot of the same image, p50 of {}", cold.count);
        table.row([what, human(cold.p50_ms), human(cold.p50_ms)]);
    }
    for (what, ms) in [
        (format!("{n} forks until every VM runs"), children.restored_ms),
        (format!("{n} forks until every agent has answered"), children.ready_here_ms),
        (format!("{n} forks until every result has arrived"), children.output_ms),
    ] {
        table.row([what, human(ms), each(ms)]);
    }
    if let Some(pause) = &children.pause {
        let pauses = |spread: &api::Spread| [human(spread.p50_ms), format!("{} max", human(spread.max_ms))];
        let [p50, max] = pauses(&pause.daemon);
        table.row([format!("branch pause, p50 of {}", pause.daemon.count), p50, max]);
        let [p50, max] = pauses(&pause.seen);
        table.row(["branch pause measured by a client".into(), p50, max]);
    }
    let memory = &children.memory;
    let sides = |side: [u64; 2]| format!("{} and then {}", side[0], side[1]);
    let pause = branch.pause_us.map_or_else(|| "-".into(), crate::moment::microseconds);
    format!(
        "{}\n{} of {} MiB are a child's own, {} are its parent's\n\
         branched at step {} of a computation, after a pause of {pause}: the original went on to step {}, the branch to {}\n",
        table.render(),
        bytes(memory.private_p50_bytes),
        demo.memory_mib,
        bytes(memory.shared_p50_bytes),
        branch.before,
        sides(branch.original),
        sides(branch.branch),
    )
}
