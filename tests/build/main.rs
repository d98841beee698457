//! `forkd image build` with real guests, on a KVM host, native or machine.

mod dockerfile;
mod network;

use std::process::ExitCode;

use forkd_tests::suite::{Test, in_soak};

/// Part of `make test`.
const CORE: &[Test] = &[];

/// Part of `make test-all`.
const REST: &[Test] = &[
    ("dockerfile::built_and_built_again", dockerfile::built_and_built_again),
    ("dockerfile::a_failing_command_is_named_and_leaves_nothing", dockerfile::a_failing_command),
    ("dockerfile::an_image_from_nothing", dockerfile::an_image_from_nothing),
];

/// Part of `make soak`: the rules of a build's network are those of sandboxes', which are tested on their own.
const SOAK: &[Test] =
    &[("network::commands_reach_the_internet_only", network::commands_reach_the_internet_only)];

fn main() -> ExitCode {
    forkd_tests::suite::main(CORE, &[REST, in_soak(SOAK)].concat())
}
