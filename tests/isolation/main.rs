//! Other people's code, on your host: real guests that try what they should not be able to, on a KVM host, native or machine.
//! `make e2e-isolation` runs them.

mod builds;
mod charge;
mod cpu;
mod disk;
mod guest;
mod internet;
mod neighbours;
mod network;
mod process;
mod quotas;

use std::process::ExitCode;

use forkd_tests::suite::{Test, in_soak};

/// Part of `make test`.
const CORE: &[Test] = &[
    ("quotas::end_who_uses_too_much_memory", quotas::end_who_uses_too_much_memory),
    ("network::lets_out_what_is_allowed", network::lets_out_what_is_allowed),
];

/// Part of `make test-all`.
const REST: &[Test] = &[
    ("quotas::are_set", quotas::are_set),
    ("quotas::charge_what_is_shared_once", quotas::charge_what_is_shared_once),
    ("charge::follows_the_memory_of_branches", charge::follows_the_memory_of_branches),
    ("charge::survives_the_daemon", charge::survives_the_daemon),
    ("charge::is_told_to_everybody_when_it_is_too_much", charge::is_told_to_everybody_when_it_is_too_much),
    ("cpu::shown_is_what_the_model_has", cpu::shown_is_what_the_model_has),
    ("disk::is_limited_by_the_kernel", disk::is_limited_by_the_kernel),
    ("guest::that_breaks_rules_ends_alone", guest::that_breaks_rules_ends_alone),
    ("guest::that_panics_says_why", guest::that_panics_says_why),
    ("guest::that_writes_beyond_its_disk_is_refused", guest::that_writes_beyond_its_disk_is_refused),
    ("guest::that_floods_vsock_is_still_heard", guest::that_floods_vsock_is_still_heard),
    ("builds::are_limited_and_leave_nothing", builds::are_limited_and_leave_nothing),
    ("network::is_nobody_else_s", network::is_nobody_else_s),
    ("network::outlives_the_daemon", network::outlives_the_daemon),
];

/// Part of `make soak`. The tiny guest takes its process over in `make test`, with the same attempts and walls; how late neighbours
/// are answered, and who spins is held back, are measurements; devices get garbage in property tests.
const SOAK: &[Test] = &[
    ("process::that_was_taken_over_gets_nowhere", process::that_was_taken_over_gets_nowhere),
    ("neighbours::do_not_feel_each_other", neighbours::do_not_feel_each_other),
    (
        "guest::that_writes_garbage_to_registers_harms_nobody",
        guest::that_writes_garbage_to_registers_harms_nobody,
    ),
    ("quotas::hold_back_who_spins", quotas::hold_back_who_spins),
];

fn main() -> ExitCode {
    forkd_tests::suite::main(CORE, &[REST, in_soak(SOAK)].concat())
}
