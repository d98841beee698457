//! The host's KVM, driven by our own VMM.

use forkd_tests::scale::count;
use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};
use serde_json::Value;

pub fn doctor_finds_the_host_good() -> TestResult {
    let diagnosis: Value = serde_json::from_str(&host()?.run(&["forkd", "doctor", "--json"])?)?;
    check!(diagnosis["way"] == "native", "the doctor says: {diagnosis}");
    check!(diagnosis["kvm"]["state"] == "good", "the doctor says: {diagnosis}");
    Ok(())
}

pub fn a_tiny_guest_runs_to_its_first_exit() -> TestResult {
    host()?.run(&["test", "-c", "/dev/kvm"])?;
    probe(1)
}

pub fn a_hundred_vms_live_at_once() -> TestResult {
    for _ in 0..count(1, 10) {
        probe(100)?;
    }
    Ok(())
}

/// Each VM goes through 64-bit mode, cmpxchg16b, SSE and a timed loop, and once more when all are there.
fn probe(vms: u32) -> TestResult {
    let report: Value =
        serde_json::from_str(&host()?.run(&["forkd-vmm", "probe", "--vms", &vms.to_string()])?)?;
    check!(report["kvm"]["state"] == "good" && report["kvm"]["vms"] == vms, "the probe says: {report}");
    Ok(())
}
