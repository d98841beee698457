//! One sandbox does everything it should not, at once. Another one, on the same CPU, keeps working.

use std::time::{Duration, Instant};

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::measure::print;
use forkd_tests::scale::{count, is_soak};
use forkd_tests::{TestResult, check};
use serde_json::json;

const PERCENTILES: [usize; 3] = [50, 90, 99];

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Fork bomb, memory hog, disk filler, packet flood and spinning, as root of the guest. Started in the background: a call that
/// waits for it would never end.
const HAVOC: &str = "
    (sh -c 'b() { b | b & }; b' >/dev/null 2>&1 &)
    (python3 -c 'x = []\nwhile True: x.append(bytearray(1 << 20))' >/dev/null 2>&1 &)
    (while true; do cat /dev/zero >/filler; rm -f /filler; done >/dev/null 2>&1 &)
    (python3 -c 'import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\nwhile True:\n try: s.sendto(b\"x\" * 1400, (\"9.9.9.9\", 9))\n except OSError: pass' >/dev/null 2>&1 &)
    (while true; do :; done &)
    true";

pub fn do_not_feel_each_other() -> TestResult {
    let daemon = Daemon::start()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "street", "--no-wait"])?;
    let ids = daemon.fork("street", 2)?;
    let [villain, neighbour] = &ids[..] else { return Err(format!("{ids:?}").into()) };
    // The first calls load what every other finds.
    latencies(&daemon, neighbour, 5)?;
    let before = daemon.json(&["stats", neighbour])?[0].clone();
    let times = count(40, 300);
    let quiet = latencies(&daemon, neighbour, times)?;
    // It may end itself in the middle of it.
    daemon.output(&["exec", villain, "--timeout", "20", "--", "sh", "-c", HAVOC], b"")?;
    std::thread::sleep(Duration::from_secs(5));
    let loud = latencies(&daemon, neighbour, times)?;
    let after = daemon.json(&["stats", neighbour])?[0].clone();
    let villain = daemon.json(&["inspect", villain])?;
    let (quiet, loud) = (percentiles(quiet), percentiles(loud));
    print(&json!({
        "measure": "neighbour_exec_ms", "times": times, "percentiles": PERCENTILES,
        "quiet": quiet, "loud": loud, "villain": villain["state"],
    }))?;
    // Of forty, one in a hundred is the one that something else of the host held up: of those the tenth is looked at.
    let judged = if is_soak() { 2 } else { 1 };
    let (quiet, loud) = (quiet[judged], loud[judged]);
    check!(
        loud <= 3.0 * quiet,
        "{} of 100 took less than {quiet} ms, and then {loud} ms",
        PERCENTILES[judged]
    );
    let private = |stats: &serde_json::Value| stats["memory_private_bytes"].as_u64().unwrap_or(0);
    let grown = private(&after).saturating_sub(private(&before));
    check!(grown < 64 << 20, "the neighbour's memory grew by {grown}");
    daemon.run(&["exec", neighbour, "--", "sh", "-c", "head -c 20000000 /dev/urandom >/mine; rm /mine"])?;
    Ok(())
}

fn latencies(daemon: &Daemon, id: &str, times: u32) -> Result<Vec<Duration>, Error> {
    let mut all = Vec::new();
    for _ in 0..times {
        let begun = Instant::now();
        daemon.run(&["exec", id, "--", "true"])?;
        all.push(begun.elapsed());
    }
    Ok(all)
}

/// The middle, what one in ten is above and one in a hundred, in milliseconds.
fn percentiles(mut all: Vec<Duration>) -> [f64; 3] {
    all.sort();
    let at = |part: usize| all.get((all.len() * part / 100).min(all.len() - 1)).copied().unwrap_or_default();
    PERCENTILES.map(|part| at(part).as_secs_f64() * 1000.0)
}
