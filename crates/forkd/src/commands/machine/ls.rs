//! `forkd machine ls`.

use forkd_machine::{MachineStatus, list};

use super::machine_home;
use crate::arguments::LsOptions;
use crate::commands::print_value;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &LsOptions) -> Result<Exit, CliError> {
    let machines = list(&machine_home()?)?;
    print_value(&options.output, &machines, || render(&machines))?;
    Ok(Exit::Success)
}

fn render(machines: &[MachineStatus]) -> String {
    let mut text = format!(
        "{:<20} {:<13} {:>4} {:>9} {:>10} {:>6} {:>6}\n",
        "NAME", "STATE", "CPUS", "MEMORY", "DISK", "SSH", "API"
    );
    for machine in machines {
        let port = |port: Option<u16>| port.map_or_else(|| "-".to_owned(), |port| port.to_string());
        text += &format!(
            "{:<20} {:<13} {:>4} {:>5} MiB {:>6} MiB {:>6} {:>6}\n",
            machine.name.as_str(),
            machine.state.name(),
            machine.cpus,
            machine.memory_mib,
            machine.disk_mib,
            port(machine.ssh_port),
            port(machine.api_port),
        );
    }
    text
}
