//! `forkd machine status`.

use forkd_machine::MachineStatus;

use super::open;
use crate::arguments::StatusOptions;
use crate::commands::print_value;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &StatusOptions) -> Result<Exit, CliError> {
    let status = open(&options.which)?.status()?;
    print_value(&options.output, &status, || render(&status))?;
    Ok(Exit::Success)
}

fn render(status: &MachineStatus) -> String {
    let mut lines = vec![
        ("name", status.name.to_string()),
        ("state", status.state.name().to_owned()),
        ("cpus", status.cpus.to_string()),
        ("memory", format!("{} MiB", status.memory_mib)),
        ("disk", format!("{} MiB, {} MiB in use", status.disk_mib, status.disk_used_mib)),
        ("image", status.image.clone()),
    ];
    if let (Some(ssh), Some(api)) = (status.ssh_port, status.api_port) {
        lines.push(("ssh", format!("127.0.0.1:{ssh}")));
        lines.push(("api", format!("127.0.0.1:{api}")));
    }
    if let Some(pulse) = &status.heartbeat {
        let load = pulse.load;
        lines.push(("uptime", format!("{:.0} s, load {load:.2}", pulse.uptime_seconds)));
        lines.push(("heartbeat", format!("{:.0} ms", pulse.latency_ms)));
    }
    if let Some(hint) = status.state.hint() {
        lines.push(("hint", hint.to_owned()));
    }
    lines.iter().map(|(name, value)| format!("{name:<10} {value}\n")).collect()
}
