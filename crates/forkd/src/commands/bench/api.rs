//! `forkd bench api`: what a user of the API sees, each figure with a name for its end point.
//!
//! ```text
//!   POST /v1/sandboxes ──▶ restored ──▶ ready ──▶ answer here ──▶ n evals ──▶ output
//!        the daemon's clock: every VM runs; every agent has answered    this client's clock: the last result is here
//! ```
//!
//! Before that, one sandbox is branched over and over, while a client talks to it without a break: the longest that an answer took
//! around a branch is the pause that was seen. After it, single children are made one after another, and a few with their exits, page
//! faults and memory counted on the way. Last, for comparison, the snapshot's image is booted cold.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forkd_api::code::{Eval, Language};
use forkd_api::percentile::percentile;
use forkd_api::sandbox::{BranchSandbox, CreateSandboxes, KvmStats, SandboxStats, StepTiming};
use forkd_api::snapshot::{CreateSnapshot, Progress as SnapshotProgress, RemoveSnapshot};
use forkd_client::Client;
use serde::Serialize;
use tokio::sync::watch;

use super::round::{Round, round};
use crate::arguments::{BenchApiOptions, SnapshotShape};
use crate::commands::{fork, print, print_json, sheet, snapshot, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::bytes;
use crate::signals::Signals;

/// How long code may take, on the slowest host.
const LIMIT_SECS: u64 = 300;
/// Children whose faults and memory are counted.
const COUNTED: u32 = 10;
/// A client that talks to a sandbox has at least this time alone before and after each branch.
const ALONE: Duration = Duration::from_millis(300);

#[derive(Debug, Serialize)]
pub struct Report {
    pub snapshot: String,
    pub n: u32,
    /// Until every VM ran, by the daemon's clock.
    pub restored_ms: f64,
    /// Until every agent had answered, by the daemon's clock.
    pub ready_ms: f64,
    /// The same, until the answer was here.
    pub ready_here_ms: f64,
    /// From the request for the children until the last of their results was here.
    pub output_ms: f64,
    /// Of that, from the first request for a result.
    pub eval_ms: f64,
    /// How long single results took.
    pub evals: Spread,
    /// What they were, each once.
    pub results: BTreeSet<String>,
    /// What the children had for themselves when they had all answered.
    pub memory: Memory,
    pub removed_ms: f64,
    /// Where the children's time went, by the daemon's clock, in milliseconds.
    pub steps: Vec<Step>,
    /// Children that were made one by one.
    pub single: Option<Single>,
    /// Children that were counted on the way, not timed.
    pub counted: Option<Counts>,
    pub pause: Option<Pause>,
    /// From the start of a boot of the same image until its agent has answered.
    pub cold_boot: Option<Spread>,
}

/// Bytes of one child: half of them have no more.
#[derive(Debug, Serialize)]
pub struct Memory {
    pub private_p50_bytes: u64,
    pub private_max_bytes: u64,
    pub shared_p50_bytes: u64,
}

/// A step of the creation of children.
#[derive(Debug, Serialize)]
pub struct Step {
    pub step: String,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// From each request.
#[derive(Debug, Serialize)]
pub struct Single {
    pub restored: Spread,
    pub ready: Spread,
    pub output: Spread,
}

/// What children have used when their VMs run, when they are ready, and after their first result.
#[derive(Debug, Serialize)]
pub struct Counts {
    pub running: Used,
    pub ready: Used,
    pub output: Used,
}

#[derive(Debug, Serialize)]
pub struct Used {
    /// Of the guest, by KVM's counters. None where the kernel does not count.
    pub exits: Option<Range>,
    pub page_faults: Option<Range>,
    /// Of the VM process.
    pub process_faults: Range,
    pub private_bytes: Range,
}

/// Of one child: half of them have no more.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    pub p50: u64,
    pub p99: u64,
    pub max: u64,
}

#[derive(Debug, Serialize)]
pub struct Pause {
    pub branches: u32,
    /// The pause of the sandbox, as reported by the daemon.
    pub daemon: Spread,
    /// The longest that an answer took around each branch.
    pub seen: Spread,
    /// How long answers took while nothing was branched.
    pub quiet: Spread,
}

/// Milliseconds.
#[derive(Debug, PartialEq, Serialize)]
pub struct Spread {
    pub count: usize,
    pub min_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    pub snapshot: &'a str,
    pub n: u32,
    /// In Python.
    pub code: &'a str,
    pub branches: u32,
    pub cold_boots: u32,
    /// Children that are made one by one.
    pub singles: u32,
    /// Whether what children use is counted.
    pub counted: bool,
}

pub fn run(options: &BenchApiOptions) -> Result<Exit, CliError> {
    let BenchApiOptions { snapshot, n, code, branches, cold_boots, singles, daemon, output: _ } = options;
    let plan = Plan {
        snapshot,
        n: *n,
        code,
        branches: *branches,
        cold_boots: *cold_boots,
        singles: *singles,
        counted: true,
    };
    let report = with_daemon(daemon, async |client| measure(&client, plan).await)?;
    if options.output.json {
        print_json(&report)?;
    } else {
        print(&render(&report))?;
    }
    Ok(Exit::Success)
}

pub async fn measure(client: &Client, plan: Plan<'_>) -> Result<Report, CliError> {
    let mut signals = Signals::new()?;
    // First, while the host has nothing else to do: the remains of many sandboxes are cleared in the background.
    let pause = match plan.branches {
        0 => None,
        _ => Some(pause(client, plan, &mut signals).await?),
    };
    let all = round(client, plan, plan.n, false, &mut signals).await?;
    let single = match plan.singles {
        0 => None,
        _ => Some(single(client, plan, &mut signals).await?),
    };
    let counted = match plan.counted {
        false => None,
        true => Some(Counts::of(&round(client, plan, plan.n.min(COUNTED), true, &mut signals).await?)),
    };
    let cold_boot = match plan.cold_boots {
        0 => None,
        // An early return ends the boots with their connection.
        _ => Some(tokio::select! {
            booted = cold_boots(client, plan) => booted?,
            asked = signals.end() => return Err(CliError::Interrupted(asked.status())),
        }),
    };
    let timing = &all.created.timing;
    Ok(Report {
        snapshot: plan.snapshot.to_owned(),
        n: plan.n,
        restored_ms: from_us(timing.restored_us),
        ready_ms: from_us(timing.ready_us),
        ready_here_ms: ms(all.ready_here),
        output_ms: ms(all.output),
        eval_ms: ms(all.output.saturating_sub(all.ready_here)),
        evals: Spread::of(all.evals),
        results: all.results,
        memory: Memory::of(&all.stats),
        removed_ms: ms(all.removed),
        steps: timing.steps.iter().map(Step::of).collect(),
        single,
        counted,
        pause,
        cold_boot,
    })
}

/// Children one by one.
async fn single(client: &Client, plan: Plan<'_>, signals: &mut Signals) -> Result<Single, CliError> {
    let (mut restored, mut ready, mut output) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.singles {
        let round = round(client, plan, 1, false, signals).await?;
        restored.push(Duration::from_micros(round.created.timing.restored_us));
        ready.push(Duration::from_micros(round.created.timing.ready_us));
        output.push(round.output);
    }
    Ok(Single { restored: Spread::of(restored), ready: Spread::of(ready), output: Spread::of(output) })
}

impl Step {
    fn of(timing: &StepTiming) -> Step {
        let StepTiming { step, count: _, p50_us, p99_us, max_us } = timing;
        let [p50_ms, p99_ms, max_ms] = [p50_us, p99_us, max_us].map(|us| from_us(*us));
        Step { step: step.clone(), p50_ms, p99_ms, max_ms }
    }
}

impl Counts {
    fn of(round: &Round) -> Counts {
        let counted = &round.created.counted;
        Counts {
            running: Used::of(counted.iter().map(|counted| &counted.running)),
            ready: Used::of(counted.iter().map(|counted| &counted.ready)),
            output: Used::of(&round.stats),
        }
    }
}

impl Used {
    fn of<'a>(stats: impl IntoIterator<Item = &'a SandboxStats>) -> Used {
        let stats: Vec<_> = stats.into_iter().collect();
        let range = |of: fn(&SandboxStats) -> u64| Range::of(stats.iter().map(|stats| of(stats)).collect());
        let kvm = |of: fn(KvmStats) -> u64| {
            let counted = stats.iter().map(|stats| stats.kvm.map(of)).collect::<Option<Vec<_>>>();
            counted.filter(|counted| !counted.is_empty()).map(Range::of)
        };
        Used {
            exits: kvm(|kvm| kvm.exits),
            page_faults: kvm(|kvm| kvm.page_faults),
            process_faults: range(|stats| stats.process_faults),
            private_bytes: range(|stats| stats.memory_private_bytes),
        }
    }

    fn text(&self) -> String {
        let faults = self.page_faults.as_ref().map(|faults| format!("{} page faults, ", faults.p50));
        let exits = self.exits.as_ref().map(|exits| format!("{} exits, ", exits.p50));
        let (process, private) = (self.process_faults.p50, bytes(self.private_bytes.p50));
        let (faults, exits) = (faults.unwrap_or_default(), exits.unwrap_or_default());
        format!("{faults}{exits}{process} of its process, {private} private (p50)")
    }
}

impl Range {
    fn of(mut numbers: Vec<u64>) -> Range {
        numbers.sort_unstable();
        let at = |percent| percentile(&numbers, percent);
        Range { p50: at(50), p99: at(99), max: at(100) }
    }
}

pub fn eval_of(code: &str) -> Eval {
    Eval {
        code: code.to_owned(),
        language: Language::Python,
        context: None,
        env: Default::default(),
        timeout_secs: LIMIT_SECS,
    }
}

/// Evaluates, and returns the value of the last expression.
pub async fn evaluate(client: &Client, id: &str, eval: &Eval) -> Result<Option<String>, CliError> {
    let evaluated = client.eval(id, eval).await?;
    match evaluated.error {
        None => Ok(evaluated.result),
        Some(error) => Err(CliError::BenchCode(format!("{id}: {}: {}", error.name, error.value))),
    }
}

impl Memory {
    fn of(stats: &[SandboxStats]) -> Memory {
        let range = |of: fn(&SandboxStats) -> u64| Range::of(stats.iter().map(of).collect());
        let private = range(|stats| stats.memory_private_bytes);
        Memory {
            private_p50_bytes: private.p50,
            private_max_bytes: private.max,
            shared_p50_bytes: range(|stats| stats.memory_shared_bytes).p50,
        }
    }
}

/// One answer to the client that talks without a break.
#[derive(Debug, Clone, Copy)]
struct Talk {
    from: Instant,
    to: Instant,
}

async fn pause(client: &Client, plan: Plan<'_>, signals: &mut Signals) -> Result<Pause, CliError> {
    let wanted = CreateSandboxes { snapshot_tag: Some(plan.snapshot.to_owned()), n: 1, ..Default::default() };
    let created = fork::create(client, &wanted, signals).await?;
    let Some(sandbox) = created.sandboxes.first() else {
        return Err(CliError::Io("measure", std::io::Error::other("the daemon made no sandbox")));
    };
    let mut tags = Vec::new();
    let measured = tokio::select! {
        measured = branch_and_talk(client, &sandbox.id, plan.branches, &mut tags) => measured,
        asked = signals.end() => Err(CliError::Interrupted(asked.status())),
    };
    // Also one that was being made when it was stopped.
    tags = client.sandbox(&sandbox.id).await.map_or(tags, |sandbox| sandbox.branches);
    fork::remove(client, &sandbox.id).await;
    // The latest first: each is a change of the one before.
    for tag in tags.iter().rev() {
        client.remove_snapshot(tag, RemoveSnapshot::default()).await?;
    }
    measured
}

/// Boots the snapshot's image over and over, without its warm-up.
async fn cold_boots(client: &Client, plan: Plan<'_>) -> Result<Spread, CliError> {
    let snapshot = client.snapshot(plan.snapshot).await?;
    let Some(image) = snapshot.image else {
        return Err(CliError::NoImage(plan.snapshot.to_owned()));
    };
    let shape = SnapshotShape {
        vcpus: Some(snapshot.vcpus),
        memory: Some(snapshot.memory_mib),
        disk: Some(snapshot.disk_mib),
        cpu: Some(snapshot.cpu),
        no_network: !snapshot.network,
        kernel: None,
    };
    let mut times = Vec::new();
    for count in 0..plan.cold_boots {
        let tag = Some(format!("bench-cold-{}-{count}", std::process::id()));
        let wanted = CreateSnapshot { tag, wait: false, ..snapshot::make::of_image(&image, &shape) };
        let (mut begun, mut ready) = (None, None);
        let made = client.create_snapshot(&wanted, |told| match told {
            SnapshotProgress::Step(step) if step == "boot" => begun = Some(Instant::now()),
            SnapshotProgress::Step(step) if step == "freeze" => ready = Some(Instant::now()),
            _ => {}
        });
        let made = made.await?;
        client.remove_snapshot(&made.tag, RemoveSnapshot::default()).await?;
        times.extend(begun.zip(ready).map(|(begun, ready)| ready.duration_since(begun)));
    }
    Ok(Spread::of(times))
}

async fn branch_and_talk(
    client: &Client,
    id: &str,
    count: u32,
    tags: &mut Vec<String>,
) -> Result<Pause, CliError> {
    let over = Arc::new(AtomicBool::new(false));
    let (answer, mut answers) = watch::channel(0u32);
    let talking = tokio::spawn({
        let (client, id, over) = (client.clone(), id.to_owned(), Arc::clone(&over));
        async move {
            let mut talks = Vec::new();
            let eval = eval_of("1");
            while !over.load(Ordering::Relaxed) {
                let from = Instant::now();
                evaluate(&client, &id, &eval).await?;
                talks.push(Talk { from, to: Instant::now() });
                answer.send_modify(|count| *count += 1);
            }
            Ok::<_, CliError>(talks)
        }
    });
    let (mut branches, mut daemon) = (Vec::new(), Vec::new());
    for _ in 0..count {
        if !alone(&mut answers).await {
            break;
        }
        let from = Instant::now();
        let branch = client.branch(id, &BranchSandbox::default()).await?;
        branches.push(Talk { from, to: Instant::now() });
        daemon.extend(branch.pause_us.map(Duration::from_micros));
        tags.push(branch.tag);
    }
    alone(&mut answers).await;
    over.store(true, Ordering::Relaxed);
    let talks =
        talking.await.map_err(|error| CliError::Io("wait for the talking client", error.into()))??;
    let (seen, quiet) = sort_out(&talks, &branches);
    Ok(Pause {
        branches: count,
        daemon: Spread::of(daemon),
        seen: Spread::of(seen),
        quiet: Spread::of(quiet),
    })
}

/// Leaves the talking client its time, and at least one answer that no branch had a part in: the first may have been asked for
/// before. False if it has stopped talking; it says why at the end.
async fn alone(answers: &mut watch::Receiver<u32>) -> bool {
    let had = *answers.borrow();
    tokio::time::sleep(ALONE).await;
    answers.wait_for(|count| *count >= had + 2).await.is_ok()
}

/// The longest answer around each branch, and all answers that had nothing to do with one.
fn sort_out(talks: &[Talk], branches: &[Talk]) -> (Vec<Duration>, Vec<Duration>) {
    let overlap = |talk: &Talk, branch: &Talk| talk.from <= branch.to && branch.from <= talk.to;
    let longest = |branch: &Talk| {
        talks.iter().filter(|talk| overlap(talk, branch)).map(|talk| talk.to.duration_since(talk.from)).max()
    };
    let quiet = talks.iter().filter(|talk| !branches.iter().any(|branch| overlap(talk, branch)));
    (
        branches.iter().filter_map(longest).collect(),
        quiet.map(|talk| talk.to.duration_since(talk.from)).collect(),
    )
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Spread {
        times.sort_unstable();
        let at = |percent| ms(percentile(&times, percent));
        Spread { count: times.len(), min_ms: at(0), p50_ms: at(50), p99_ms: at(99), max_ms: at(100) }
    }

    fn text(&self) -> String {
        let Spread { count, min_ms, p50_ms, p99_ms, max_ms } = self;
        format!("min {min_ms:.2}, p50 {p50_ms:.2}, p99 {p99_ms:.2}, max {max_ms:.2} ms ({count})")
    }
}

fn from_us(us: u64) -> f64 {
    ms(Duration::from_micros(us))
}

/// Microseconds are exact enough.
pub fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn render(report: &Report) -> String {
    let ms = |ms: f64| Some(format!("{ms:.1} ms"));
    let memory = &report.memory;
    let pause = |spread: fn(&Pause) -> &Spread| report.pause.as_ref().map(|pause| spread(pause).text());
    let used = |of: fn(&Counts) -> &Used| report.counted.as_ref().map(|counts| of(counts).text());
    let steps = report.steps.iter().map(|step| format!("{} {:.1}", step.step, step.p50_ms));
    let steps = steps.collect::<Vec<_>>().join(", ");
    sheet(&[
        ("snapshot", Some(report.snapshot.clone())),
        ("n", Some(report.n.to_string())),
        ("restored", ms(report.restored_ms)),
        ("ready", ms(report.ready_ms)),
        ("ready here", ms(report.ready_here_ms)),
        ("output", ms(report.output_ms)),
        ("evals", Some(report.evals.text())),
        ("steps, p50 ms", Some(steps)),
        (
            "memory",
            Some(format!(
                "{} private a child, {} shared",
                bytes(memory.private_p50_bytes),
                bytes(memory.shared_p50_bytes)
            )),
        ),
        ("removed", ms(report.removed_ms)),
        ("single, ready", report.single.as_ref().map(|single| single.ready.text())),
        ("single, output", report.single.as_ref().map(|single| single.output.text())),
        ("at running", used(|counts| &counts.running)),
        ("at ready", used(|counts| &counts.ready)),
        ("at output", used(|counts| &counts.output)),
        ("pause, daemon", pause(|pause| &pause.daemon)),
        ("pause, seen", pause(|pause| &pause.seen)),
        ("quiet answers", pause(|pause| &pause.quiet)),
        ("cold boot", report.cold_boot.as_ref().map(Spread::text)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_are_of_sorted_times() {
        let spread = Spread::of((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!((spread.min_ms, spread.p50_ms, spread.p99_ms, spread.max_ms), (1.0, 50.0, 99.0, 100.0));
        assert_eq!(Spread::of(vec![]).max_ms, 0.0);
    }

    #[test]
    fn an_answer_counts_for_the_branch_that_it_overlaps() {
        let zero = Instant::now();
        let talk = |from, to| Talk {
            from: zero + Duration::from_millis(from),
            to: zero + Duration::from_millis(to),
        };
        let talks = [talk(0, 2), talk(2, 12), talk(12, 13), talk(20, 21)];
        let (seen, quiet) = sort_out(&talks, &[talk(5, 8), talk(12, 12)]);
        assert_eq!(seen, [10, 10].map(Duration::from_millis));
        assert_eq!(quiet, [2, 1].map(Duration::from_millis));
    }
}
