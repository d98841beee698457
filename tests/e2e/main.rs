//! Tests on a KVM host, native or machine. `make e2e` runs them.

mod cgroup;
mod kvm;
mod linux;
mod nftables;
mod watch;

use std::process::ExitCode;

use forkd_tests::suite::{Test, in_soak};

/// Part of `make test-all`.
const REST: &[Test] = &[
    ("kvm::doctor_finds_the_host_good", kvm::doctor_finds_the_host_good),
    ("kvm::a_tiny_guest_runs_to_its_first_exit", kvm::a_tiny_guest_runs_to_its_first_exit),
    ("kvm::a_hundred_vms_live_at_once", kvm::a_hundred_vms_live_at_once),
    ("cgroup::v2_has_all_controllers", cgroup::v2_has_all_controllers),
    ("cgroup::a_limit_holds", cgroup::a_limit_holds),
    ("nftables::a_rule_set_loads", nftables::a_rule_set_loads),
    ("linux::a_shell_on_two_vcpus_is_forked", linux::a_shell_on_two_vcpus_is_forked),
    ("linux::vsock_is_reset_in_copies_only", linux::vsock_is_reset_in_copies_only),
    ("linux::the_network_survives_a_branch", linux::the_network_survives_a_branch),
];

/// Part of `make soak`: `make test` does the same through the API, with more going on in the guest; and the tests' own watchdog.
const SOAK: &[Test] = &[
    ("linux::a_shell_is_forked", linux::a_shell_is_forked),
    ("linux::branched_while_it_writes", linux::branched_while_it_writes),
    ("linux::snapshots_go_on", linux::snapshots_go_on),
    ("linux::a_guest_is_rolled_back", linux::a_guest_is_rolled_back),
    (
        "watch::a_machine_that_stops_answering_is_restarted",
        watch::a_machine_that_stops_answering_is_restarted,
    ),
    ("linux::branched_while_it_writes_on_two_vcpus", linux::branched_while_it_writes_on_two_vcpus),
];

fn main() -> ExitCode {
    forkd_tests::suite::main(&[], &[REST, in_soak(SOAK)].concat())
}
