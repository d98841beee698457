//! What is counted and timed, in the text format that Prometheus reads.
//!
//! Names begin with `forkd_`. The frame counts requests; what sandboxes and snapshots do is reported through
//! [`EngineMetrics`], by the code that calls the engine. `make reference` writes docs/reference/metrics.md from all of them.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use forkd_api::error::ErrorCode;
use forkd_net::PoolStats;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

/// The type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The route of requests that have none: unknown paths are the callers' to invent, so they are no label.
const NO_ROUTE: &str = "none";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    method: &'static str,
    status: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabels {
    code: String,
}

/// Whether another sandbox had the network before.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NetworkLabels {
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: &'static str,
}

/// All metrics of the daemon.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    latency: Family<RouteLabels, Histogram, fn() -> Histogram>,
    errors: Family<CodeLabels, Counter>,
    connections: Gauge,
    pub engine: EngineMetrics,
}

/// What sandboxes and snapshots do.
#[derive(Debug, Clone)]
pub struct EngineMetrics {
    forks: Counter,
    fork_time: Histogram,
    ready_time: Histogram,
    branch_pause: Histogram,
    identity_window: Histogram,
    exec_time: Histogram,
    zygote_loads: Counter,
    zygote_evictions: Counter,
    zygotes: Gauge,
    zygote_bytes: Gauge,
    sandboxes: Family<StateLabels, Gauge>,
    snapshots: Family<StateLabels, Gauge>,
    networks_ready: Gauge,
    networks_taken: Family<NetworkLabels, Counter>,
    networks_not_reused: Counter,
}

/// 100 µs to 26 s, each twice the one before.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 19))
}

impl Default for Metrics {
    fn default() -> Metrics {
        let mut registry = Registry::with_prefix("forkd");
        registry.register(
            "build",
            "Version of the daemon",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        let metrics = Metrics {
            requests: Family::default(),
            latency: Family::new_with_constructor(seconds),
            errors: Family::default(),
            connections: Gauge::default(),
            engine: EngineMetrics::new(&mut registry),
            registry: Mutex::default(),
        };
        registry.register(
            "http_requests",
            "Requests that were answered, by route, method and status",
            metrics.requests.clone(),
        );
        let latency = metrics.latency.clone();
        registry.register_with_unit(
            "http_latency",
            "Time until the head of the response",
            Unit::Seconds,
            latency,
        );
        registry.register("errors", "Error responses, by code", metrics.errors.clone());
        registry.register("http_connections", "Open connections", metrics.connections.clone());
        Metrics { registry: Mutex::new(registry), ..metrics }
    }
}

impl Metrics {
    /// Adds the counters of what the audit log and, if they are sent, the spans have lost.
    pub fn register_losses(&self, audit: Counter, spans: Option<Counter>) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register("audit_lost_lines", "Audit log lines that could not be written", audit);
        if let Some(spans) = spans {
            registry.register("spans_lost", "Spans dropped instead of sent", spans);
        }
    }

    /// All metrics as text.
    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut buffer = String::new();
        text::encode(&mut buffer, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(buffer)
    }

    /// A request was answered. The route is its template, as `/v1/sandboxes/{id}`.
    pub fn answered(&self, route: Option<&str>, method: &Method, status: StatusCode, latency: Duration) {
        let route = route.unwrap_or(NO_ROUTE).to_owned();
        let method = known(method);
        let labels = RequestLabels { route: route.clone(), method, status: status.as_u16() };
        self.requests.get_or_create(&labels).inc();
        self.latency.get_or_create(&RouteLabels { route, method }).observe(latency.as_secs_f64());
    }

    /// An answer was an error.
    pub fn failed(&self, code: ErrorCode) {
        let name = serde_json::to_value(code).ok();
        let code = name.as_ref().and_then(|name| name.as_str()).unwrap_or("unknown").to_owned();
        self.errors.get_or_create(&CodeLabels { code }).inc();
    }

    /// Counts a connection until the value is dropped.
    pub fn connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }
}

/// A connection that is open.
#[derive(Debug)]
pub struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl EngineMetrics {
    fn new(registry: &mut Registry) -> EngineMetrics {
        let metrics = EngineMetrics {
            forks: Counter::default(),
            fork_time: seconds(),
            ready_time: seconds(),
            branch_pause: seconds(),
            identity_window: seconds(),
            exec_time: seconds(),
            zygote_loads: Counter::default(),
            zygote_evictions: Counter::default(),
            zygotes: Gauge::default(),
            zygote_bytes: Gauge::default(),
            sandboxes: Family::default(),
            snapshots: Family::default(),
            networks_ready: Gauge::default(),
            networks_taken: Family::default(),
            networks_not_reused: Counter::default(),
        };
        registry.register("forks", "Sandboxes forked", metrics.forks.clone());
        registry.register(
            "zygote_loads",
            "Snapshots loaded from disk into a zygote",
            metrics.zygote_loads.clone(),
        );
        registry.register(
            "zygote_evictions",
            "Zygotes ended to free their memory",
            metrics.zygote_evictions.clone(),
        );
        registry.register("zygotes", "Snapshots held in memory by a zygote", metrics.zygotes.clone());
        let bytes = metrics.zygote_bytes.clone();
        registry.register_with_unit("zygote_memory", "Memory held by zygotes", Unit::Bytes, bytes);
        for (name, help, histogram) in [
            ("fork", "Time until every VM of a request was running", &metrics.fork_time),
            ("ready", "Time until every guest of a request was ready", &metrics.ready_time),
            ("branch_pause", "Pause of a sandbox while it was branched", &metrics.branch_pause),
            (
                "identity_window",
                "Time that programs ran in a fork of a live branch before it had its own identity",
                &metrics.identity_window,
            ),
            ("exec", "Duration of commands", &metrics.exec_time),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
        registry.register("sandboxes", "Sandboxes, by state", metrics.sandboxes.clone());
        registry.register("snapshots", "Snapshots, by status", metrics.snapshots.clone());
        let ready = metrics.networks_ready.clone();
        registry.register("networks_ready", "Networks ready for new sandboxes", ready);
        registry.register(
            "networks_taken",
            "Networks given to sandboxes, new or reset after another sandbox",
            metrics.networks_taken.clone(),
        );
        registry.register(
            "networks_not_reused",
            "Networks removed because they could not be reset",
            metrics.networks_not_reused.clone(),
        );
        metrics
    }

    /// A request has made so many sandboxes.
    pub fn forked(&self, count: u64, restored: Duration, ready: Duration) {
        self.forks.inc_by(count);
        self.fork_time.observe(restored.as_secs_f64());
        self.ready_time.observe(ready.as_secs_f64());
    }

    pub fn branched(&self, pause: Duration) {
        self.branch_pause.observe(pause.as_secs_f64());
    }

    /// A child of a live branch has its identity.
    pub fn identified(&self, window: Duration) {
        self.identity_window.observe(window.as_secs_f64());
    }

    pub fn executed(&self, time: Duration) {
        self.exec_time.observe(time.as_secs_f64());
    }

    pub fn zygote_loaded(&self) {
        self.zygote_loads.inc();
    }

    pub fn zygote_evicted(&self) {
        self.zygote_evictions.inc();
    }

    /// How many snapshots have a process now.
    pub fn set_zygotes(&self, count: i64) {
        self.zygotes.set(count);
    }

    pub fn set_zygote_bytes(&self, bytes: i64) {
        self.zygote_bytes.set(bytes);
    }

    /// How many sandboxes are in this state now.
    pub fn set_sandboxes(&self, state: &'static str, count: i64) {
        self.sandboxes.get_or_create(&StateLabels { state }).set(count);
    }

    /// What the pool of networks has, and has done since the daemon was started.
    pub fn set_networks(&self, stats: &PoolStats) {
        self.networks_ready.set(i64::try_from(stats.ready).unwrap_or(i64::MAX));
        for (kind, count) in [("new", stats.taken_new), ("reused", stats.taken_reused)] {
            let taken = self.networks_taken.get_or_create(&NetworkLabels { kind });
            taken.inner().fetch_max(count, Ordering::Relaxed);
        }
        self.networks_not_reused.inner().fetch_max(stats.not_reused, Ordering::Relaxed);
    }

    /// How many snapshots have this status now.
    pub fn set_snapshots(&self, state: &'static str, count: i64) {
        self.snapshots.get_or_create(&StateLabels { state }).set(count);
    }
}

/// Methods are the callers' to invent, too.
fn known(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Metrics

`make reference` writes this page from the registry of the daemon. `GET /metrics` serves them in the OpenMetrics text format; it needs a
token with the scope `read`, unless the daemon has no tokens. Histograms have the samples `_bucket`, `_sum` and `_count`.

| metric | type | |
|---|---|---|
";

    /// All metrics, each with at least one sample: the text has no families without samples.
    fn sampled() -> Metrics {
        let metrics = Metrics::default();
        metrics.register_losses(Counter::default(), Some(Counter::default()));
        metrics.answered(None, &Method::GET, StatusCode::OK, Duration::ZERO);
        metrics.failed(ErrorCode::NotFound);
        metrics.engine.set_sandboxes("running", 1);
        metrics.engine.set_snapshots("ready", 1);
        metrics.engine.set_networks(&PoolStats { ready: 1, taken_new: 1, taken_reused: 1, not_reused: 1 });
        metrics
    }

    #[test]
    fn the_page_of_the_metrics_is_current() {
        let metrics = sampled();
        let text = metrics.text().unwrap();
        // A registry does not list its descriptors, but prints them.
        let registered = format!("{:?}", metrics.registry.lock().unwrap()).matches("Descriptor {").count();
        let shown = text.lines().filter(|line| line.starts_with("# TYPE ")).count();
        assert_eq!(shown, registered, "sampled() lacks a sample of a family with labels");
        let facts = |word: &str| {
            let prefix = format!("# {word} ");
            let lines = text.lines().filter_map(move |line| line.strip_prefix(&prefix)?.split_once(' '));
            lines.collect::<std::collections::BTreeMap<_, _>>()
        };
        let (kinds, helps) = (facts("TYPE"), facts("HELP"));
        let mut page = PAGE.to_owned();
        for (name, kind) in kinds {
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            let help = helps[name].trim_end_matches('.');
            page += &format!("| `{name}{suffix}` | {kind} | {help} |\n");
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
        if std::env::var_os("FORKD_UPDATE").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(checked_in == page, "docs/reference/metrics.md is out of date: run make reference");
    }

    #[test]
    fn what_happens_is_in_the_text() {
        let metrics = Metrics::default();
        metrics.answered(Some("/v1/x/{id}"), &Method::GET, StatusCode::OK, Duration::from_millis(3));
        let invented = Method::from_bytes(b"BREW").unwrap();
        metrics.answered(None, &invented, StatusCode::NOT_FOUND, Duration::ZERO);
        metrics.failed(ErrorCode::NotFound);
        metrics.engine.forked(100, Duration::from_millis(30), Duration::from_millis(90));
        metrics.engine.identified(Duration::from_millis(4));
        metrics.engine.set_sandboxes("running", 7);
        metrics.engine.set_networks(&PoolStats { ready: 16, taken_new: 3, taken_reused: 5, not_reused: 1 });
        let open = metrics.connection();
        let text = metrics.text().unwrap();
        for line in [
            r#"forkd_http_requests_total{route="/v1/x/{id}",method="GET",status="200"} 1"#,
            r#"forkd_http_requests_total{route="none",method="other",status="404"} 1"#,
            r#"forkd_http_latency_seconds_count{route="/v1/x/{id}",method="GET"} 1"#,
            r#"forkd_errors_total{code="not_found"} 1"#,
            "forkd_forks_total 100",
            "forkd_fork_seconds_count 1",
            "forkd_identity_window_seconds_count 1",
            r#"forkd_sandboxes{state="running"} 7"#,
            "forkd_networks_ready 16",
            r#"forkd_networks_taken_total{kind="new"} 3"#,
            r#"forkd_networks_taken_total{kind="reused"} 5"#,
            "forkd_networks_not_reused_total 1",
            "forkd_http_connections 1",
            "# EOF",
        ] {
            assert!(text.lines().any(|is| is == line), "{line} is not in\n{text}");
        }
        assert!(text.contains(&format!("forkd_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION"))));
        drop(open);
        assert!(metrics.text().unwrap().contains("forkd_http_connections 0"));
    }
}
