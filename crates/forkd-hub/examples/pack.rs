//! Measures how fast a file is packed and unpacked: `cargo run --release -p forkd-hub --example pack FILE`. Prints JSON.
//!
//! Both go by way of a layout, with all CPUs. `*_mb_per_cpu_second` divides raw bytes by the CPU time of the process, so it is the
//! speed of one core, whatever else runs.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use forkd_hub::layout::{self, Layout};
use forkd_hub::{About, Annotations, ByteSink, Outgoing, Role, Silent, Snapshot, first_variant};

/// Takes everything and keeps nothing.
struct Nowhere;

impl ByteSink for Nowhere {
    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Ok(())
    }
}

/// CPU time of this process, all threads.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: pack FILE")?;
    let file = File::open(&path)?;
    let raw = file.metadata()?.len();
    let streams =
        [Outgoing { role: Role::Memory, name: "file", source: &file, known: None, remembered: None }];
    let snapshot = Snapshot { streams: &streams, about: &About::new(), annotations: &Annotations::new() };

    let (begun, cpu) = (Instant::now(), cpu_time());
    let mut tar = Vec::new();
    let written = layout::write(&mut tar, snapshot, None, &Silent)?;
    let packed = (begun.elapsed(), cpu_time() - cpu);

    let directory = tempfile::tempdir()?;
    let (begun, cpu) = (Instant::now(), cpu_time());
    let layout = Layout::unpack(&tar[..], directory.path(), u64::MAX, &Silent)?;
    let spooled = (begun.elapsed(), cpu_time() - cpu);
    let artifact = layout.open(&first_variant)?;
    let (begun, cpu) = (Instant::now(), cpu_time());
    layout.fetch(&artifact.streams()[0], &|_| false, &Nowhere, &Silent)?;
    let unpacked = (begun.elapsed(), cpu_time() - cpu);

    let speed = |time: Duration| (raw as f64 / 1e6 / time.as_secs_f64()).round();
    let result = serde_json::json!({
        "raw_bytes": raw,
        "compressed_bytes": written.compressed,
        "ratio": (raw as f64 / written.compressed as f64 * 100.0).round() / 100.0,
        "pack_mb_per_second": speed(packed.0),
        "pack_mb_per_cpu_second": speed(packed.1),
        "spool_mb_per_second": speed(spooled.0),
        "unpack_mb_per_second": speed(unpacked.0),
        "unpack_mb_per_cpu_second": speed(unpacked.1),
    });
    println!("{result}");
    Ok(())
}
