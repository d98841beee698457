//! `forkd machine` through its command line: what it promises, and every way in which reality interferes.
//!
//! Each test has a home of its own, which shares only the cached image with the others.

mod world;

mod commands;
mod crashes;
mod disk_space;
mod missing_tools;
mod removal;
mod starts;

use std::process::ExitCode;

use forkd_tests::suite::{Test, in_soak, wanted};
use libtest_mimic::{Arguments, Failed, Trial};

const TESTS: &[Test] = &[
    ("commands::exec_passes_streams_and_status", commands::exec_passes_streams_and_status),
    (
        "commands::the_host_s_binaries_are_visible_and_read_only",
        commands::the_host_s_binaries_are_visible_and_read_only,
    ),
    ("commands::machines_are_listed_with_their_states", commands::machines_are_listed_with_their_states),
    ("commands::wrong_usage_is_refused", commands::wrong_usage_is_refused),
    (
        "crashes::a_killed_qemu_is_noticed_and_started_again",
        crashes::a_killed_qemu_is_noticed_and_started_again,
    ),
    ("crashes::a_stale_pid_file_harms_nobody", crashes::a_stale_pid_file_harms_nobody),
    ("crashes::a_killed_init_leaves_all_or_nothing", crashes::a_killed_init_leaves_all_or_nothing),
    ("disk_space::init_refuses_a_small_disk", disk_space::init_refuses_a_small_disk),
    ("disk_space::a_build_that_runs_out_leaves_nothing", disk_space::a_build_that_runs_out_leaves_nothing),
    ("missing_tools::each_is_named_with_its_package", missing_tools::each_is_named_with_its_package),
    ("missing_tools::the_doctor_names_them_too", missing_tools::the_doctor_names_them_too),
    ("removal::nothing_is_left", removal::nothing_is_left),
    ("removal::a_damaged_machine_can_be_removed", removal::a_damaged_machine_can_be_removed),
    ("starts::a_second_start_finds_the_first", starts::a_second_start_finds_the_first),
    ("starts::two_starts_at_once_make_one_machine", starts::two_starts_at_once_make_one_machine),
    ("starts::taken_ports_are_not_a_problem", starts::taken_ports_are_not_a_problem),
];

/// Part of `make soak`: few starts show little of them, and hosts that are out of order are rare.
const SOAK: &[Test] = &[
    ("crashes::a_killed_start_is_finished_by_the_next", crashes::a_killed_start_is_finished_by_the_next),
    ("starts::many_in_a_row", starts::many_in_a_row),
    (
        "crashes::a_machine_that_hangs_is_told_from_one_that_runs",
        crashes::a_machine_that_hangs_is_told_from_one_that_runs,
    ),
    ("disk_space::a_full_disk_pauses_the_machine", disk_space::a_full_disk_pauses_the_machine),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each machine takes a core and memory.
    arguments.test_threads = Some(1);
    let trials = wanted(&[], &[TESTS, in_soak(SOAK)].concat()).into_iter().map(|(name, test)| {
        Trial::test(name, move || test().map_err(|error| Failed::from(error.to_string())))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}
