//! `forkd-vmm` whose guest can take it over: what it writes to a magic port, attacker's code in the vCPU's thread does.
//!
//! `hostile-vmm run [--uid ID] <CONTROL-SOCKET`, as the daemon starts `forkd-vmm`. Whom it attacks, its guest says. The
//! environment says whether its system calls are filtered, as they always are in the product.

use std::process::ExitCode;

use forkd_tests::hostile::{self, Targets};
use forkd_vmm::Options;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let Some(options) = Options::parse(&arguments) else { return ExitCode::from(2) };
    let Ok(daemon) = std::os::unix::process::parent_id().try_into() else { return ExitCode::from(2) };
    hostile::aim(Targets { victim: daemon, daemon, port: 0 });
    let unfiltered = !std::env::var(hostile::FILTER).is_ok_and(|value| value == "on");
    match forkd_vmm::run(Options { unfiltered, attack: Some(hostile::attack), ..options }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
