//! `forkd-vmm` whose guest can take it over: what it writes to a magic port, attacker's code in the vCPU's thread does.
//!
//! `hostile-vmm run VICTIM PORT UID FILTERED <CONTROL-SOCKET`: a process to attack, a TCP port of the host's, its own user id, and
//! whether its system calls are filtered, as they always are in the product.

use std::process::ExitCode;

use forkd_tests::hostile::{self, Targets};
use forkd_vmm::Options;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    let [victim, port, uid, filtered] = arguments.as_slice() else { return ExitCode::from(2) };
    let daemon = std::os::unix::process::parent_id();
    let (Ok(victim), Ok(port), Ok(uid), Ok(filtered), Ok(daemon)) =
        (victim.parse(), port.parse(), uid.parse(), filtered.parse(), daemon.try_into())
    else {
        return ExitCode::from(2);
    };
    hostile::aim(Targets { victim, daemon, port });
    match forkd_vmm::run(Options { uid: Some(uid), filtered, attack: Some(hostile::attack) }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
