//! A stock Linux kernel under the engine. Every guest's disk passes `e2fsck` after its end.

use forkd_tests::scale::count;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};
use serde_json::Value;

/// Every guest verifies every file that it wrote: the source, and children forked from branches that were taken while it
/// wrote. No two guests have written the same random bytes.
pub fn branched_while_it_writes() -> TestResult {
    writes(1, count(2, 4), count(2, 5))
}

pub fn branched_while_it_writes_on_two_vcpus() -> TestResult {
    writes(2, count(1, 4), count(2, 5))
}

fn writes(vcpus: u32, branches: u32, children: u32) -> TestResult {
    let result = guest(&["writes", &vcpus.to_string(), &branches.to_string(), &children.to_string()])?;
    let guests = branches * children + 1;
    check!(result["guests"] == guests && result["distinct"] == guests, "{result}");
    Ok(())
}

/// Each child is told something else on its console, does it, and knows nothing of the others. One more panics.
pub fn a_shell_is_forked() -> TestResult {
    shell(1, count(4, 20))
}

pub fn a_shell_on_two_vcpus_is_forked() -> TestResult {
    shell(2, count(2, 20))
}

fn shell(vcpus: u32, children: u32) -> TestResult {
    let result = guest(&["shell", &vcpus.to_string(), &children.to_string()])?;
    check!(result["guests"] == children + 1, "{result}");
    Ok(())
}

/// A full snapshot and a diff, of branches of a running guest.
pub fn snapshots_go_on() -> TestResult {
    often(1, 2, "snapshots")
}

pub fn a_guest_is_rolled_back() -> TestResult {
    often(1, 4, "rollback")
}

/// A branch leaves its source's connections alone; a copy of the guest has them closed, and goes on to listen.
pub fn vsock_is_reset_in_copies_only() -> TestResult {
    often(1, 6, "vsock")
}

/// The same on the network; children have the same address in namespaces of their own.
pub fn the_network_survives_a_branch() -> TestResult {
    often(1, 6, "net")
}

/// On one vCPU and on two, in turn.
fn often(small: u32, large: u32, test: &str) -> TestResult {
    for round in 0..count(small, large) {
        guest(&[test, &(1 + round % 2).to_string()])?;
    }
    Ok(())
}

/// Runs a test on the host.
fn guest(words: &[&str]) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    Ok(serde_json::from_str(&host()?.run(&[&["linux-guest"], words].concat())?)?)
}
