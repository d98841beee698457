//! `forkd bench api`, with its hundred children in `make soak` only: an emulator takes a minute for them.

use std::io::Write;

use forkd_tests::daemon::Daemon;
use forkd_tests::scale::count;
use forkd_tests::{TestResult, check};

use crate::life::snapshot;

pub fn of_the_api() -> TestResult {
    let daemon = Daemon::start()?;
    snapshot(&daemon)?;
    let n = count(10, 100).to_string();
    let (code, colds) = ("numpy.zeros(5).tolist()", count(1, 5).to_string());
    let words = ["bench", "api", "--snapshot", "warm", "--n", &n, "--code", code, "--cold-boots", &colds];
    let report = daemon.json(&words)?;
    check!(report["output_ms"].as_f64() > report["ready_ms"].as_f64(), "{report}");
    check!(report["pause"]["seen"]["count"].as_u64() > Some(0), "{report}");
    writeln!(std::io::stdout(), "{report}")?;
    check!(daemon.run(&["ls", "--quiet"])?.is_empty(), "nothing is left");
    Ok(())
}
