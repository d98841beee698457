//! `GET /metrics`: what the guest uses.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use forkd_envd::metrics::Metrics;

use super::rest::RestError;
use crate::agent::Agent;
use crate::runtime::blocking;

const MIB: u64 = 1 << 20;

/// The processors' time at the last question: use is measured between two, so that nothing has to tick. The first answer is
/// the average since the guest booted.
#[derive(Debug, Default)]
pub struct LastTimes(Mutex<Times>);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Times {
    busy: u64,
    all: u64,
}

pub async fn metrics(State(agent): State<Arc<Agent>>) -> Response {
    let read = blocking(read).await.and_then(|read| read);
    match read {
        Ok((mut metrics, times)) => {
            let mut last = agent.last_times.0.lock().unwrap_or_else(PoisonError::into_inner);
            metrics.cpu_used_pct = used(*last, times);
            *last = times;
            Json(metrics).into_response()
        }
        Err(error) => RestError::system("/proc", &error).into_response(),
    }
}

fn read() -> io::Result<(Metrics, Times)> {
    let (times, cpu_count) = processors(&std::fs::read_to_string("/proc/stat")?);
    let memory = std::fs::read_to_string("/proc/meminfo")?;
    let bytes = |name: &str| kibibytes(&memory, name) << 10;
    let disk = rustix::fs::statvfs("/")?;
    let (mem_total, mem_used) = (bytes("MemTotal"), bytes("MemTotal").saturating_sub(bytes("MemAvailable")));
    let metrics = Metrics {
        ts: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        cpu_count: cpu_count as u64,
        cpu_used_pct: 0.0,
        mem_total,
        mem_used,
        mem_cache: bytes("Cached"),
        mem_total_mib: mem_total / MIB,
        mem_used_mib: mem_used / MIB,
        disk_used: disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize),
        disk_total: disk.f_blocks.saturating_mul(disk.f_frsize),
    };
    Ok((metrics, times))
}

/// The first line of /proc/stat (`cpu  user nice system idle iowait irq softirq steal …`) and the number of processors.
fn processors(stat: &str) -> (Times, usize) {
    let mut lines = stat.lines().filter(|line| line.starts_with("cpu"));
    let numbers = lines.next().unwrap_or_default().split_whitespace().skip(1).take(8);
    let mut times = Times::default();
    for (index, number) in numbers.map(|number| number.parse::<u64>().unwrap_or_default()).enumerate() {
        times.all = times.all.saturating_add(number);
        // Idle and waiting for a disk.
        if index != 3 && index != 4 {
            times.busy = times.busy.saturating_add(number);
        }
    }
    (times, lines.count())
}

/// Of all processors together, in percent with two digits.
fn used(before: Times, now: Times) -> f64 {
    let busy = now.busy.saturating_sub(before.busy);
    let all = now.all.saturating_sub(before.all).max(1);
    let hundredths = u32::try_from(busy.min(all).saturating_mul(10_000) / all).unwrap_or_default();
    f64::from(hundredths) / 100.0
}

fn kibibytes(memory: &str, name: &str) -> u64 {
    let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_and_their_use_is_between_two_questions() {
        let before = processors("cpu  10 0 10 70 10 0 0 0 5 5\ncpu0 1 1\ncpu1 1 1\nintr 5\n");
        assert_eq!(before, (Times { busy: 20, all: 100 }, 2));
        assert!((used(before.0, Times { busy: 70, all: 200 }) - 50.0).abs() < 0.01);
        assert!(used(before.0, before.0) < 0.01);
        assert_eq!(processors(""), (Times::default(), 0));
    }

    #[test]
    fn this_system_can_be_read() {
        let (metrics, _) = read().unwrap();
        assert!(metrics.cpu_count > 0 && metrics.mem_total > metrics.mem_used && metrics.disk_total > 0);
        assert_eq!(kibibytes("MemTotalX: 5 kB\nMemTotal:   7 kB\n", "MemTotal"), 7);
    }
}
