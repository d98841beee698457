//! `forkd-agent`: PID 1 and agent of a guest.
//!
//! As PID 1 it brings the guest up and then serves over vsock. `serve` is the same agent as an ordinary process over TCP, for
//! development and tests: it is not PID 1, mounts nothing, and runs commands as the user who started it. Under the name `sudo`
//! it is one, for images that have none: see [`account`].

mod account;
mod agent;
mod arguments;
mod children;
mod connect;
mod dial;
mod envd;
mod identity;
mod init;
mod interpreter;
mod json_line;
mod listing;
mod network;
mod readiness;
mod routers;
mod runtime;
mod serve;
mod server;
mod startup;
#[cfg(test)]
mod testing;
mod transfer;
mod users;

use std::io::{self, Write};
use std::process::ExitCode;

use arguments::Role;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if words.next().is_some_and(|program| account::is_sudo(&program)) {
        return account::run_sudo(words.collect());
    }
    let arguments: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let result = match arguments::parse(&arguments, std::process::id()) {
        Ok(Role::Init) => init::run().map_err(|error| error.to_string()),
        Ok(Role::Serve(options)) => serve::run(&options).map_err(|error| error.to_string()),
        Ok(Role::Version) => {
            let line = concat!("forkd-agent ", env!("CARGO_PKG_VERSION"));
            writeln!(io::stdout(), "{line}").map_err(|error| error.to_string())
        }
        Err(arguments::UsageError) => {
            report(arguments::USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            report(&message);
            ExitCode::FAILURE
        }
    }
}

fn report(message: &str) {
    // Nobody is left to tell when stderr itself is gone.
    let _ = writeln!(io::stderr(), "forkd-agent: {message}");
}
