//! `forkd machine init`.

use forkd_host::{home, kvm};
use forkd_machine::init;

use super::machine_home;
use crate::arguments::InitOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &InitOptions) -> Result<Exit, CliError> {
    let host = kvm::probe(&home::binaries().map_err(CliError::Binaries)?)?;
    let wanted =
        forkd_machine::InitOptions { cpus: options.cpus, memory_mib: options.memory, disk_mib: options.disk };
    let name = &options.which.name;
    let progress = Progress::new();
    let machine = init(&machine_home()?, name, &wanted, &host, &progress)?;
    progress.finish();
    if options.output.json {
        print_json(&machine.status()?)?;
    } else {
        say(&format!("Machine {name} is made. Start it with: forkd machine start --name {name}"));
    }
    Ok(Exit::Success)
}
