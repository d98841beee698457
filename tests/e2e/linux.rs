//! A stock Linux kernel under the engine.

use forkd_tests::scale::count;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};
use serde_json::Value;

/// Every guest verifies every file that it wrote, and every disk passes `e2fsck`: the source's, and those of children forked
/// from branches that were taken while it wrote. No two guests have written the same random bytes.
pub fn branched_while_it_writes() -> TestResult {
    guest(1, count(2, 4), count(2, 5))
}

pub fn branched_while_it_writes_on_two_vcpus() -> TestResult {
    guest(2, count(1, 4), count(2, 5))
}

fn guest(vcpus: u32, branches: u32, children: u32) -> TestResult {
    let words = [vcpus, branches, children].map(|number| number.to_string());
    let output = host()?.run(&["linux-guest", &words[0], &words[1], &words[2]])?;
    let result: Value = serde_json::from_str(&output)?;
    let guests = branches * children + 1;
    check!(result["guests"] == guests && result["distinct"] == guests, "{result}");
    Ok(())
}
