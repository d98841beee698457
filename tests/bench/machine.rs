//! `make bench`: how long a warm `forkd machine start` takes until the machine is ready. One JSON object on stdout.

use std::error::Error;
use std::io::Write;

use forkd_tests::binaries;
use serde_json::{Value, json};

const NAME: &str = "forkd-bench";
const RUNS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let home = forkd_host::home::directory()?;
    let forkd = |arguments: &[&str]| -> Result<Value, Box<dyn Error>> {
        let output =
            binaries::forkd(&home, &[&["machine"], arguments, &["--name", NAME]].concat()).output()?;
        if !output.status.success() {
            return Err(binaries::transcript(&output).into());
        }
        Ok(serde_json::from_slice(&output.stdout).unwrap_or(Value::Null))
    };
    if forkd(&["status", "--json"]).is_err() {
        forkd(&["init"])?;
    }
    forkd(&["stop"])?;
    let mut times = Vec::new();
    let mut attempts = 0;
    for _ in 0..RUNS {
        let started = forkd(&["start", "--json"])?;
        times.push(started["start"]["ready_ms"].as_u64().ok_or("no time")?);
        attempts += started["start"]["attempts"].as_u64().ok_or("no attempts")?;
        forkd(&["stop"])?;
    }
    forkd(&["rm"])?;
    times.sort_unstable();
    let line = json!({
        "bench": "machine-start",
        "end": "ready",
        "n": RUNS,
        "attempts": attempts,
        "p50_ms": times[RUNS / 2],
        "max_ms": times[RUNS - 1],
    });
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
