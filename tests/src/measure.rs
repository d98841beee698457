//! What benchmarks measure with, and how they print it.

use std::fs;
use std::io::Write;

use serde_json::Value;

use crate::engine::process::Failure;

/// Prints one result as a line of JSON on stdout.
pub fn print(result: &Value) -> Result<(), Failure> {
    Ok(writeln!(std::io::stdout(), "{result}")?)
}

/// The value below which this share of the sorted values lies.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((sorted.len() * percent / 100).min(last)).copied().unwrap_or(f64::NAN)
}

/// KiB that belong to this process alone.
pub fn private_kib(pid: i32) -> Result<u64, Failure> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    Ok(["Private_Clean:", "Private_Dirty:"].iter().map(|name| field(&rollup, name)).sum())
}

/// KiB that this process has in huge pages.
pub fn huge_kib(pid: i32) -> Result<u64, Failure> {
    Ok(field(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?, "AnonHugePages:"))
}

/// KiB that the host could still give to somebody.
pub fn available_kib() -> Result<u64, Failure> {
    Ok(field(&fs::read_to_string("/proc/meminfo")?, "MemAvailable:"))
}

/// The same, once it has stopped to change: the kernel takes back the memory of many VMs long after they have ended.
pub fn settled_available_kib() -> Result<u64, Failure> {
    let mut before = available_kib()?;
    for _ in 0..50 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        let now = available_kib()?;
        if now.abs_diff(before) < 1024 {
            return Ok(now);
        }
        before = now;
    }
    Ok(before)
}

fn field(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Lets the process have as many descriptors as it may.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it only the largest runs fail, and say why.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 50), percentile(&values, 99)), (51.0, 100.0));
        assert_eq!(percentile(&[7.0], 99), 7.0);
        assert!(percentile(&[], 50).is_nan());
    }

    #[test]
    fn fields_are_numbers() {
        assert_eq!(field("A: 5 kB\nPrivate_Dirty:   12 kB\n", "Private_Dirty:"), 12);
        assert!(available_kib().unwrap() > 0);
        assert!(private_kib(i32::try_from(std::process::id()).unwrap()).unwrap() > 0);
    }
}
