//! What a guest is shown of the CPU: nothing with which it could be a host itself, and of a level no more than the level has.

use std::collections::BTreeSet;

use forkd_tests::daemon::Daemon;
use forkd_tests::library::DEBIAN;
use forkd_tests::{TestResult, check};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// What the guest's kernel has found.
fn flags(daemon: &Daemon, id: &str) -> Result<BTreeSet<String>, Error> {
    let shown = daemon.run(&["exec", id, "--", "grep", "-m", "1", "^flags", "/proc/cpuinfo"])?;
    Ok(shown.split_whitespace().map(str::to_owned).collect())
}

pub fn shown_is_what_the_model_has() -> TestResult {
    let daemon = Daemon::start()?;
    daemon.run(&["snapshot", DEBIAN, "--tag", "of-host", "--no-wait"])?;
    let id = daemon.run(&["fork", "of-host"])?;
    let found = flags(&daemon, &id)?;
    check!(found.contains("sse2") && found.contains("hypervisor"), "{found:?}");
    for hidden in ["vmx", "svm", "smx", "sgx", "intel_pt", "arch_perfmon", "perfctr_core", "mpx"] {
        check!(!found.contains(hidden), "the guest has {hidden}");
    }
    let kvm = daemon.run(&["exec", &id, "--", "sh", "-c", "test -e /dev/kvm || echo none"])?;
    check!(kvm == "none", "{kvm}");

    daemon.run(&["snapshot", DEBIAN, "--tag", "of-level", "--cpu", "x86-64-v2", "--no-wait"])?;
    let shown = daemon.json(&["snapshot", "inspect", "of-level"])?;
    check!(shown["cpu"] == "x86-64-v2", "{shown}");
    let id = daemon.run(&["fork", "of-level"])?;
    let found = flags(&daemon, &id)?;
    check!(found.contains("sse4_2") && found.contains("popcnt"), "{found:?}");
    for newer in ["avx", "avx2", "xsave", "aes", "rdrand", "fsgsbase", "svm"] {
        check!(!found.contains(newer), "x86-64-v2 has no {newer}");
    }
    let sum = daemon.run(&["eval", &id, "sum(x * 0.5 for x in range(9))"])?;
    check!(sum == "18.0", "{sum}");
    Ok(())
}
