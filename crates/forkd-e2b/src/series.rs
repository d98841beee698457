//! What sandboxes have used over time.
//!
//! Every [`PERIOD`] the host's figures say how much CPU time each running sandbox has taken. One that took next to none is idle: it
//! is not woken to be asked, and its memory and disk are as they were. Of the others, the guest's agent is asked. Only sandboxes that
//! were made through E2B's API are looked at, and nothing is written: a daemon that starts again begins anew.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_engine::{SandboxState, SandboxView};
use forkd_envd::metrics::{METRICS, Metrics};
use futures_util::{StreamExt, stream};
use tokio::time::MissedTickBehavior;

use crate::App;
use crate::about::About;

/// As E2B measures.
pub(crate) const PERIOD: Duration = Duration::from_secs(5);
/// What is kept of each sandbox: an hour.
const KEPT: usize = 720;
/// CPU time of a period, below which a guest is idle: the timers of its kernel take some milliseconds.
const IDLE_US: u64 = 50_000;
/// After a longer time without a measurement, as of a paused sandbox, the next one begins anew.
const LONGEST: Duration = Duration::from_secs(15);
/// Agents that are asked at once, and how long one may take.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(2);

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Point {
    pub unix: u64,
    pub cpu_count: u64,
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

impl Point {
    /// What the agent says.
    pub fn of(unix: u64, said: &Metrics) -> Point {
        Point {
            unix,
            cpu_count: said.cpu_count,
            cpu_used_pct: said.cpu_used_pct,
            mem_used: said.mem_used,
            mem_total: said.mem_total,
            mem_cache: said.mem_cache,
            disk_used: said.disk_used,
            disk_total: said.disk_total,
        }
    }
}

/// Of all sandboxes, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Series(Mutex<HashMap<String, Ring>>);

#[derive(Debug, Default)]
struct Ring {
    last: Option<Counted>,
    points: VecDeque<Point>,
}

/// CPU time so far, and when it was read.
#[derive(Debug, Clone, Copy)]
struct Counted {
    at: Instant,
    cpu_us: u64,
}

/// The CPU time between two readings.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Load {
    pct: f64,
    idle: bool,
}

impl Series {
    /// What was measured in a time, the oldest first.
    pub fn of(&self, id: &str, start: Option<u64>, end: Option<u64>) -> Vec<Point> {
        let rings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = |point: &&Point| {
            start.is_none_or(|start| point.unix >= start) && end.is_none_or(|end| point.unix <= end)
        };
        rings.get(id).map(|ring| ring.points.iter().filter(asked).copied().collect()).unwrap_or_default()
    }

    /// Forgets sandboxes that are no more.
    fn keep(&self, is_there: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|id, _| is_there(id));
    }

    /// Takes a reading. Returns the load since the one before, and the point before this one.
    fn count(&self, id: &str, now: Counted, cpus: u64) -> (Option<Load>, Option<Point>) {
        let mut rings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let ring = rings.entry(id.to_owned()).or_default();
        let load = ring.last.and_then(|before| load(before, now, cpus));
        ring.last = Some(now);
        (load, ring.points.back().copied())
    }

    fn add(&self, id: &str, point: Point) {
        let mut rings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have been removed meanwhile.
        if let Some(ring) = rings.get_mut(id) {
            if ring.points.len() == KEPT {
                ring.points.pop_front();
            }
            ring.points.push_back(point);
        }
    }
}

/// Of all processors of the guest together, in percent with two digits. `None` after a gap.
fn load(before: Counted, now: Counted, cpus: u64) -> Option<Load> {
    let passed = now.at.duration_since(before.at);
    let passed_us = u64::try_from(passed.as_micros()).ok().filter(|us| *us > 0)?;
    if passed > LONGEST {
        return None;
    }
    let used = now.cpu_us.saturating_sub(before.cpu_us);
    let hundredths = used.saturating_mul(10_000) / passed_us.saturating_mul(cpus.max(1));
    let hundredths = u32::try_from(hundredths.min(10_000)).unwrap_or_default();
    Some(Load { pct: f64::from(hundredths) / 100.0, idle: used < IDLE_US })
}

/// Measures until the daemon stops.
pub(crate) async fn measure(app: &App) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let views: Vec<SandboxView> =
            app.engine.sandboxes().into_iter().filter(|view| About::is_of(&view.record)).collect();
        app.e2b.series.keep(|id| views.iter().any(|view| view.record.id.as_str() == id));
        let running = views.into_iter().filter(|view| view.state == SandboxState::Running);
        stream::iter(running).for_each_concurrent(AT_ONCE, |view| measure_one(app, view)).await;
    }
}

/// What cannot be read is not measured: a sandbox that ends meanwhile, or that has no agent.
async fn measure_one(app: &App, view: SandboxView) {
    let (series, id) = (&app.e2b.series, view.record.id.as_str());
    let Ok(cpu_us) = app.engine.cpu_us(id).await else { return };
    let now = Counted { at: Instant::now(), cpu_us };
    let (Some(load), before) = series.count(id, now, view.record.shape.vcpus.into()) else { return };
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let point = match before {
        Some(before) if load.idle => Point { unix, cpu_used_pct: load.pct, ..before },
        _ => {
            let Ok(sandbox) = app.engine.sandbox(id) else { return };
            let Ok(agent) = sandbox.answering_agent() else { return };
            let Ok(said) = agent.get::<Metrics>(METRICS, PATIENCE).await else { return };
            Point { cpu_used_pct: load.pct, ..Point::of(unix, &said) }
        }
    };
    series.add(id, point);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(unix: u64) -> Point {
        Point::of(unix, &Metrics { mem_used: 2, ..Metrics::default() })
    }

    #[test]
    fn the_load_is_that_between_two_readings() {
        let at = Instant::now();
        let counted = |seconds, cpu_us| Counted { at: at + Duration::from_secs(seconds), cpu_us };
        let load = |now, cpus| load(counted(0, 1_000_000), now, cpus).map(|load| (load.pct, load.idle));
        assert_eq!(load(counted(5, 3_500_000), 1), Some((50.0, false)));
        assert_eq!(load(counted(5, 3_500_000), 2), Some((25.0, false)));
        assert_eq!(load(counted(5, 1_000_000 + IDLE_US - 1), 1), Some((0.99, true)));
        // The VM process has threads of its own, and a counter may begin anew.
        assert_eq!(load(counted(5, 9_000_000), 1), Some((100.0, false)));
        assert_eq!(load(counted(5, 0), 1), Some((0.0, true)));
        assert_eq!(load(counted(0, 2_000_000), 1), None);
        assert_eq!(load(counted(16, 2_000_000), 1), None);
    }

    #[test]
    fn a_series_has_an_end_and_is_forgotten() {
        let series = Series::default();
        series.add("i1", point(0));
        assert_eq!(series.of("i1", None, None), [], "of a sandbox that is not measured");
        let now = Counted { at: Instant::now(), cpu_us: 1 };
        assert_eq!(series.count("i1", now, 1), (None, None));
        for unix in 1..=KEPT as u64 + 10 {
            series.add("i1", point(unix));
        }
        let all = series.of("i1", None, None);
        assert_eq!((all.len(), all[0].unix), (KEPT, 11));
        let some = series.of("i1", Some(100), Some(102));
        assert_eq!(some, [point(100), point(101), point(102)]);
        assert_eq!(series.of("i1", Some(900), None), []);
        assert_eq!(series.of("i2", None, None), []);
        assert_eq!(series.count("i1", now, 1), (None, Some(point(KEPT as u64 + 10))));
        series.keep(|id| id != "i1");
        assert_eq!(series.of("i1", None, None), []);
    }
}
