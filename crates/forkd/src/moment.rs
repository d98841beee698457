//! Times and sizes for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long ago a second since 1970 was: `12s`, `3m`, `5h`, `2d`.
pub fn ago(unix: u64) -> String {
    short(now().saturating_sub(unix))
}

/// How long it is until then; `now` if that is over.
pub fn until(unix: u64) -> String {
    match unix.saturating_sub(now()) {
        0 => "now".into(),
        seconds => short(seconds),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn short(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

/// A second since 1970, in full.
pub fn at(unix: u64) -> String {
    at_ms(unix.saturating_mul(1000)).replace(".000Z", "Z")
}

/// A millisecond since 1970, in full.
pub fn at_ms(unix_ms: u64) -> String {
    match UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms)) {
        // humantime knows no year after 9999.
        Some(time) if unix_ms < 253_402_300_800_000 => humantime::format_rfc3339_millis(time).to_string(),
        _ => "-".into(),
    }
}

/// Microseconds, as milliseconds or seconds.
pub fn microseconds(us: u64) -> String {
    let time = Duration::from_micros(us);
    match us {
        0..10_000 => format!("{:.2} ms", time.as_secs_f64() * 1e3),
        10_000..1_000_000 => format!("{:.1} ms", time.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", time.as_secs_f64()),
    }
}

/// Bytes with a unit: `512 B`, `1.5 KiB`, `23 MiB`.
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = "B";
    // Tenths, so that no float is needed.
    let mut tenths = u128::from(bytes) * 10;
    for next in units {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1024;
        unit = next;
    }
    match unit {
        "B" => format!("{bytes} B"),
        _ if tenths < 100 => format!("{}.{} {unit}", tenths / 10, tenths % 10),
        _ => format!("{} {unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        assert_eq!([0, 59, 60, 7199, 86400].map(short), ["0s", "59s", "1m", "1h", "1d"]);
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at_ms(1), "1970-01-01T00:00:00.001Z");
        assert_eq!(at(u64::MAX), "-");
        assert_eq!([1234, 12_345, 1_234_567].map(microseconds), ["1.23 ms", "12.3 ms", "1.23 s"]);
        let sizes = [0, 1023, 1024, 1536, 10 << 10, 64 << 20, u64::MAX].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10 KiB", "64 MiB", "15 EiB"]);
    }
}
