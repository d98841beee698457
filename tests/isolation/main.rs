//! Other people's code, on your host: real guests that try what they should not be able to, on a KVM host, native or machine.
//! `make e2e-isolation` runs them.

mod internet;
mod network;

use std::process::ExitCode;

fn main() -> ExitCode {
    forkd_tests::suite::main(&[
        ("network::lets_out_what_is_allowed", network::lets_out_what_is_allowed),
        ("network::is_nobody_else_s", network::is_nobody_else_s),
        ("network::outlives_the_daemon", network::outlives_the_daemon),
    ])
}
