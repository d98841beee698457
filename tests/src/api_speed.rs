//! What `make bench-api` measures: children of one snapshot that are made, and removed, through a daemon's API.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_api::sandbox::{CreateSandboxes, CreatedSandboxes, StepTiming};
use forkd_client::Client;
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::engine::process::Failure;
use crate::measure;
use crate::tiny_daemon::BASE;

/// Nothing that is asked for takes longer.
const PATIENCE: Duration = Duration::from_secs(180);
/// Removals that are asked for at once.
const AT_ONCE: usize = 32;
/// Between two looks at what changes by itself.
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// In which /proc counts CPU time: `USER_HZ`, which is 100 a second on every architecture that there is KVM for.
const TICK_MS: f64 = 10.0;

/// Children of one request.
#[derive(Debug, Clone, Serialize)]
pub struct Made {
    pub n: u32,
    /// From the request until its answer: all are ready.
    pub wall_ms: f64,
    pub per_child_ms: f64,
    /// By the daemon's clock: until every VM ran, and until every guest was ready.
    pub restored_ms: f64,
    pub ready_ms: f64,
    /// CPU time of the daemon meanwhile, in steps of 10 ms.
    pub daemon_cpu_ms: f64,
    /// From the first request to remove one until the last is answered.
    pub removed_ms: f64,
    pub removed_per_child_ms: f64,
    /// Memory of their VM processes alone, when all were ready.
    pub private_kib_per_child: u64,
    /// Networks that were ready before.
    pub networks_ready: usize,
    pub steps: Vec<Step>,
}

/// What the children took for one step.
#[derive(Debug, Clone, Serialize)]
pub struct Step {
    pub step: String,
    pub n: u32,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

impl From<&StepTiming> for Step {
    fn from(timing: &StepTiming) -> Step {
        Step {
            step: timing.step.clone(),
            n: timing.count,
            p50_ms: from_us(timing.p50_us),
            p99_ms: from_us(timing.p99_us),
            max_ms: from_us(timing.max_us),
        }
    }
}

/// Waits until a daemon answers.
pub async fn until_it_answers(client: &Client) -> Result<(), Failure> {
    let begun = Instant::now();
    while let Err(error) = client.health().await {
        if begun.elapsed() > PATIENCE {
            return Err(error.into());
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
    Ok(())
}

/// Waits until at least so many networks are ready, and no more become so. Returns how many there are.
pub async fn until_networks_rest(client: &Client, ready: usize) -> Result<usize, Failure> {
    let begun = Instant::now();
    let mut before = None;
    loop {
        let now = networks_ready(&client.metrics().await?).ok_or("the daemon has no forkd_networks_ready")?;
        if before == Some(now) && now >= ready {
            return Ok(now);
        }
        if begun.elapsed() > PATIENCE {
            return Err(format!("{now} of {ready} networks are ready after {PATIENCE:?}").into());
        }
        before = Some(now);
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}

/// The gauge `forkd_networks_ready`: networks that wait for sandboxes. Used ones that still wait for their reset are not among them.
fn networks_ready(metrics: &str) -> Option<usize> {
    metrics.lines().find_map(|line| line.strip_prefix("forkd_networks_ready "))?.trim().parse().ok()
}

/// Makes so many children and removes them, when so many networks wait for them.
pub async fn children(client: &Client, daemon: u32, n: u32, ready: usize) -> Result<Made, Failure> {
    let networks_ready = until_networks_rest(client, ready).await?;
    let wanted = CreateSandboxes { snapshot_tag: Some(BASE.into()), n, ..CreateSandboxes::default() };
    // The connection is there before the clock runs.
    client.health().await?;
    let (begun, cpu_before) = (Instant::now(), cpu_ms(daemon)?);
    let created = tokio::time::timeout(PATIENCE, client.create_sandboxes(&wanted)).await??;
    let (wall_ms, cpu_after) = (ms(begun.elapsed()), cpu_ms(daemon)?);
    if created.sandboxes.len() != n as usize || !created.failures.is_empty() {
        return Err(format!("{} of {n}: {:?}", created.sandboxes.len(), created.failures).into());
    }
    let mut private_kib = 0;
    for pid in created.sandboxes.iter().filter_map(|sandbox| sandbox.pid) {
        private_kib += measure::private_kib(pid)?;
    }
    let removing = Instant::now();
    tokio::time::timeout(PATIENCE, remove(client, &created)).await??;
    let removed_ms = ms(removing.elapsed());
    let timing = &created.timing;
    Ok(Made {
        n,
        wall_ms,
        per_child_ms: wall_ms / f64::from(n),
        restored_ms: from_us(timing.restored_us),
        ready_ms: from_us(timing.ready_us),
        daemon_cpu_ms: cpu_after - cpu_before,
        removed_ms,
        removed_per_child_ms: removed_ms / f64::from(n),
        private_kib_per_child: private_kib / u64::from(n),
        networks_ready,
        steps: timing.steps.iter().map(Step::from).collect(),
    })
}

async fn remove(client: &Client, created: &CreatedSandboxes) -> Result<(), Failure> {
    let mut requests = JoinSet::new();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    for sandbox in &created.sandboxes {
        let (client, id, turns) = (client.clone(), sandbox.id.clone(), Arc::clone(&turns));
        requests.spawn(async move {
            let _turn = turns.acquire().await;
            client.remove_sandbox(&id).await
        });
    }
    while let Some(removed) = requests.join_next().await {
        removed??;
    }
    Ok(())
}

/// The one in the middle, by its time.
pub fn median<T>(mut all: Vec<T>, time: impl Fn(&T) -> f64) -> Option<T> {
    all.sort_by(|one, other| time(one).total_cmp(&time(other)));
    let middle = all.len() / 2;
    (middle < all.len()).then(|| all.swap_remove(middle))
}

/// CPU time that a process has used, with those of its threads that have ended.
fn cpu_ms(pid: u32) -> Result<f64, Failure> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    ticks(&stat).map(|ticks| ticks * TICK_MS).ok_or_else(|| format!("not understood: {stat}").into())
}

/// `utime` and `stime` of /proc/PID/stat.
fn ticks(stat: &str) -> Option<f64> {
    // The name, in parentheses, may be anything; the state comes after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some(next()? + next()?)
}

/// Microseconds are exact enough.
fn ms(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn from_us(us: u64) -> f64 {
    ms(Duration::from_micros(us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 150 25 6 7 20 0 1 0 9";
        assert_eq!(ticks(stat), Some(175.0));
        assert_eq!(ticks("7 (a) S 1"), None);
        assert!(cpu_ms(std::process::id()).unwrap() >= 0.0);
    }

    #[test]
    fn networks_that_are_ready_are_counted() {
        let metrics = "# TYPE forkd_networks_ready gauge\nforkd_networks_ready 16\nforkd_networks_taken 3\n";
        assert_eq!(networks_ready(metrics), Some(16));
        assert_eq!(networks_ready("# TYPE forkd_networks_ready gauge\n"), None);
    }

    #[test]
    fn the_median_is_one_of_them() {
        assert_eq!(median(vec![3.0, 1.0, 2.0], |value| *value), Some(2.0));
        assert_eq!(median(vec![5.0], |value| *value), Some(5.0));
        assert_eq!(median(Vec::<f64>::new(), |value| *value), None);
    }
}
