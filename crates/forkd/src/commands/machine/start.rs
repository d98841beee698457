//! `forkd machine start`.

use forkd_host::{home, kvm};
use forkd_machine::{Started, start};
use serde::Serialize;

use super::{machine_home, open};
use crate::arguments::StartOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

#[derive(Serialize)]
struct Answer {
    start: Started,
    machine: forkd_machine::MachineStatus,
}

pub fn run(options: &StartOptions) -> Result<Exit, CliError> {
    let machine = open(&options.which)?;
    let binaries = home::binaries().map_err(CliError::Binaries)?;
    let host = kvm::probe(&binaries)?;
    let progress = Progress::new();
    let started = start(
        &machine_home()?,
        &machine,
        &forkd_machine::StartOptions { binaries, library: home::library()?, host },
        &progress,
    )?;
    progress.finish();
    if options.output.json {
        print_json(&Answer { start: started, machine: machine.status()? })?;
    } else if started.already {
        say(&format!("Machine {} is already running.", machine.name));
    } else {
        let seconds = std::time::Duration::from_millis(started.ready_ms).as_secs_f64();
        say(&format!("Machine {} is ready, after {seconds:.1} s.", machine.name));
    }
    Ok(Exit::Success)
}
