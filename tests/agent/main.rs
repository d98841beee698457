//! Real images with the agent in them, on a KVM host, native or machine. `make e2e-agent` runs them; they need root, as
//! making images does.

mod guest;
mod registry;
mod sdk;

use std::process::ExitCode;

use forkd_tests::suite::{Test, in_soak};

/// Part of `make test-all`.
const REST: &[Test] = &[
    ("guest::debian_boots_to_ready", guest::debian_boots_to_ready),
    ("registry::an_image_from_a_registry_boots", registry::an_image_from_a_registry_boots),
];

/// Part of `make soak`: children that differ and the official clients pass through the daemon's API in `make test`; pressure is a
/// matter of counts.
const SOAK: &[Test] = &[
    ("guest::children_of_a_warm_parent_differ", guest::children_of_a_warm_parent_differ),
    ("sdk::the_official_clients_drive_a_guest", sdk::the_official_clients_drive_a_guest),
    ("guest::the_agent_stays_up_under_pressure", guest::the_agent_stays_up_under_pressure),
];

fn main() -> ExitCode {
    forkd_tests::suite::main(&[], &[REST, in_soak(SOAK)].concat())
}
