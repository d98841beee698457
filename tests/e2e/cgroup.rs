//! cgroup v2 as the daemon will use it.

use forkd_tests::suite::host;
use forkd_tests::{TestResult, check};

pub fn v2_has_all_controllers() -> TestResult {
    let controllers = host()?.run(&["cat", "/sys/fs/cgroup/cgroup.controllers"])?;
    for needed in ["memory", "cpu", "io", "pids"] {
        check!(
            controllers.split_whitespace().any(|found| found == needed),
            "{needed} is not among {controllers}"
        );
    }
    Ok(())
}

/// A process that asks for more memory than its cgroup allows is killed, and the cgroup says so.
pub fn a_limit_holds() -> TestResult {
    let events = host()?.script(
        "group=/sys/fs/cgroup/forkd-test-$$
         mkdir $group
         trap 'rmdir $group' EXIT
         echo 16M >$group/memory.max
         echo 0 >$group/memory.swap.max || true
         sh -c \"echo \\$\\$ >$group/cgroup.procs; head -c 64M /dev/zero | tail -c 64M >/dev/null\" && exit 1
         for controller in cpu.max io.stat pids.max; do test -f $group/$controller; done
         cat $group/memory.events",
    )?;
    check!(
        events.lines().any(|line| line.starts_with("oom_kill ") && line != "oom_kill 0"),
        "no kill in: {events}"
    );
    Ok(())
}
