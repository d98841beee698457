//! What memory this host has, as its kernel tells it.

use std::fs;

/// All of it, in bytes; nothing where the kernel does not tell.
pub fn total() -> Option<u64> {
    field(&meminfo(), "MemTotal:")
}

/// What can be had without swapping, in bytes; nothing where the kernel does not tell.
pub fn available() -> Option<u64> {
    field(&meminfo(), "MemAvailable:")
}

fn meminfo() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// `MemTotal:       16384 kB`
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_name() {
        let meminfo = "MemTotal:       16384 kB\nMemFree:   1 kB\nMemAvailable:   8 kB\nHuge: 18446744073709551615 kB\n";
        assert_eq!(field(meminfo, "MemTotal:"), Some(16 << 20));
        assert_eq!(field(meminfo, "MemAvailable:"), Some(8 << 10));
        for none in ["Mem:", "Huge:", "Total:"] {
            assert_eq!(field(meminfo, none), None, "{none}");
        }
        assert!(total() >= available());
    }
}
