//! `GET /metrics`: what a guest uses.

use serde::{Deserialize, Serialize};

pub const METRICS: &str = "/metrics";

/// In bytes, where nothing else is said.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// Seconds since 1970.
    pub ts: u64,
    pub cpu_count: u64,
    pub cpu_used_pct: f64,
    pub mem_total: u64,
    pub mem_used: u64,
    pub mem_cache: u64,
    pub mem_total_mib: u64,
    pub mem_used_mib: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}
