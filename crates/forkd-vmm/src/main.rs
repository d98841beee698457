//! `forkd-vmm`: the process that owns a microVM. The daemon and the CLI start it; people do not.
//!
//! `run` owns a VM and does what its control socket says. `probe` tries whether this host's KVM can run a stock Linux
//! kernel. `cpu` prints what guests from elsewhere may need of this one. `floor` measures the least that a fork can cost here.

use forkd_vmm::{ControlError, Options, floor, host_cpu, probe};
use std::io::{self, Write};
use std::process::ExitCode;

const USAGE: &str = "usage: forkd-vmm run [--uid ID] [--file-bytes N] <CONTROL-SOCKET\n       forkd-vmm probe [--vms N] [--device PATH]\n       forkd-vmm cpu\n       forkd-vmm floor CHILDREN MEMORY-MIB\n       forkd-vmm --version";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(status) => status,
        Err(RunError::Usage) => {
            report(USAGE);
            ExitCode::from(2)
        }
        Err(RunError::Control(error)) => {
            report(&forkd_proto::causes::with_causes(&error));
            ExitCode::FAILURE
        }
        Err(RunError::Output(error)) => {
            report(&format!("cannot write the report: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, RunError> {
    match arguments.split_first() {
        Some((role, options)) if role == "run" => {
            let options = Options::parse(options).ok_or(RunError::Usage)?;
            forkd_vmm::run(options).map_err(RunError::Control)?;
            Ok(ExitCode::SUCCESS)
        }
        Some((role, [children, memory_mib])) if role == "floor" => {
            let number = |text: &String| text.parse::<u32>().map_err(|_| RunError::Usage);
            let memory_bytes = u64::from(number(memory_mib)?) << 20;
            floor::print(number(children)?, memory_bytes).map_err(RunError::Output)?;
            Ok(ExitCode::SUCCESS)
        }
        Some((role, [])) if role == "cpu" => {
            let host = host_cpu::look().map_err(|error| RunError::Output(io::Error::other(error)))?;
            print(&host)
        }
        Some((role, [])) if role == "--version" => {
            let line = concat!("forkd-vmm ", env!("CARGO_PKG_VERSION"));
            writeln!(io::stdout(), "{line}").map_err(RunError::Output)?;
            Ok(ExitCode::SUCCESS)
        }
        Some((role, options)) if role == "probe" => print(&probe::probe(&probe_options(options)?)),
        _ => Err(RunError::Usage),
    }
}

/// Prints a line of JSON.
fn print(report: &impl serde::Serialize) -> Result<ExitCode, RunError> {
    let line = serde_json::to_string(report).map_err(io::Error::from).map_err(RunError::Output)?;
    writeln!(io::stdout(), "{line}").map_err(RunError::Output)?;
    Ok(ExitCode::SUCCESS)
}

fn probe_options(arguments: &[String]) -> Result<probe::Options, RunError> {
    let mut options = probe::Options::default();
    let mut rest = arguments.iter();
    while let Some(name) = rest.next() {
        let value = rest.next().ok_or(RunError::Usage)?;
        match name.as_str() {
            "--vms" => options.vms = value.parse().map_err(|_| RunError::Usage)?,
            "--device" => options.device = value.into(),
            _ => return Err(RunError::Usage),
        }
    }
    if options.vms == 0 { Err(RunError::Usage) } else { Ok(options) }
}

enum RunError {
    Usage,
    Control(ControlError),
    Output(io::Error),
}

fn report(message: &str) {
    // Nobody is left to tell when stderr itself is gone.
    let _ = writeln!(io::stderr(), "forkd-vmm: {message}");
}
