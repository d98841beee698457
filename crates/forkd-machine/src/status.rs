//! What a machine is doing, found out anew each time.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::control::{self, Pulse};
use crate::files::FileError;
use crate::machine::{Home, Machine};
use crate::name::Name;
use crate::qemu::Accelerator;
use crate::qmp::Qmp;
use crate::run_state::{Ports, RunState};
use crate::{OpenError, ssh};

/// How long a heartbeat may take. The answer has real-time priority in the machine, so this is patience with the host.
pub(crate) const PULSE_LIMIT: Duration = Duration::from_secs(5);

/// See the picture in the crate's documentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MachineState {
    Stopped,
    Starting,
    Running,
    /// QEMU runs, but the machine's heartbeat has stopped.
    Unresponsive,
    /// QEMU has stopped the machine because it could not write to the host's disk.
    Paused,
    /// QEMU has ended without being asked to.
    Crashed,
}

impl MachineState {
    pub fn name(self) -> &'static str {
        match self {
            MachineState::Stopped => "stopped",
            MachineState::Starting => "starting",
            MachineState::Running => "running",
            MachineState::Unresponsive => "unresponsive",
            MachineState::Paused => "paused",
            MachineState::Crashed => "crashed",
        }
    }

    /// What a user can do about it, where there is something.
    pub fn hint(self) -> Option<&'static str> {
        match self {
            MachineState::Stopped | MachineState::Starting | MachineState::Running => None,
            MachineState::Unresponsive => Some("end it with: forkd machine stop --force"),
            MachineState::Paused => {
                Some("the host's disk is full: free some space, then: forkd machine start")
            }
            MachineState::Crashed => Some("see: forkd machine logs; then: forkd machine start"),
        }
    }
}

/// A machine and what it is doing.
#[derive(Debug, Serialize)]
pub struct MachineStatus {
    pub name: Name,
    pub state: MachineState,
    pub cpus: u32,
    pub memory_mib: u64,
    pub disk_mib: u64,
    /// What the disk takes on the host, beyond the image that machines share.
    pub disk_used_mib: u64,
    pub image: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// On 127.0.0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh_port: Option<u16>,
    /// On 127.0.0.1; the daemon's port in the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_port: Option<u16>,
    /// Seconds since the epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Pulse>,
}

/// What is known about a machine's process.
#[derive(Debug)]
pub(crate) struct Inspection {
    pub state: MachineState,
    pub run: Option<RunState>,
    pub pulse: Option<Pulse>,
}

/// Looks at the process, the heartbeat and QEMU, in that order, as far as it takes to know.
pub(crate) fn inspect(directory: &Path) -> Result<Inspection, FileError> {
    let Some(run) = RunState::read(directory)? else {
        return Ok(Inspection { state: MachineState::Stopped, run: None, pulse: None });
    };
    let found = |state, pulse| Ok(Inspection { state, run: Some(run.clone()), pulse });
    if !run.process.is_alive() {
        return found(MachineState::Crashed, None);
    }
    match control::ping(directory, PULSE_LIMIT) {
        Ok(pulse) if run.ready => return found(MachineState::Running, Some(pulse)),
        _ if !run.ready => return found(MachineState::Starting, None),
        _ => {}
    }
    // QEMU may have ended during the wait for the heartbeat.
    let state = match qemu_status(directory).as_deref() {
        _ if !run.process.is_alive() => MachineState::Crashed,
        Some("io-error" | "paused") => MachineState::Paused,
        _ => MachineState::Unresponsive,
    };
    found(state, None)
}

fn qemu_status(directory: &Path) -> Option<String> {
    let mut qmp = Qmp::connect(directory, PULSE_LIMIT).ok()?;
    let status = qmp.execute("query-status", serde_json::json!({})).ok()?;
    Some(status["status"].as_str()?.to_owned())
}

impl Machine {
    /// What the machine is doing now.
    pub fn status(&self) -> Result<MachineStatus, FileError> {
        let Inspection { state, run, pulse } = inspect(self.directory())?;
        // The process of a crashed machine has ended, and its id may belong to another process.
        let run = run.filter(|_| state != MachineState::Crashed);
        let ports = run.as_ref().and_then(|run| run.ports);
        let disk_used = self.disk_used().map_err(FileError::at("look at", &self.file("disk.qcow2")))?;
        Ok(MachineStatus {
            name: self.name.clone(),
            state,
            cpus: self.config.cpus,
            memory_mib: self.config.memory_mib,
            disk_mib: self.config.disk_mib,
            disk_used_mib: disk_used >> 20,
            image: self.config.image.clone(),
            pid: run.as_ref().map(|run| run.process.pid),
            accelerator: run.as_ref().map(|run| run.accelerator),
            ssh_port: ports.map(|ports| ports.ssh),
            api_port: ports.map(|ports| ports.api),
            started_at: run.as_ref().map(|run| run.started_at),
            heartbeat: pulse,
        })
    }

    /// Asks for one heartbeat.
    pub fn ping(&self, limit: Duration) -> Result<Pulse, crate::ControlError> {
        control::ping(self.directory(), limit)
    }

    /// A command that runs `words` in the machine with the streams that it is given, and ends with their exit status.
    pub fn exec(&self, words: &[String]) -> Result<std::process::Command, NotRunning> {
        Ok(ssh::exec(self, self.ports()?.ssh, words)?)
    }

    /// The same, with ports of the machine's loopback on the same ports of this host's while it runs.
    pub fn exec_with_ports(
        &self,
        words: &[String],
        ports: &[u16],
    ) -> Result<std::process::Command, NotRunning> {
        Ok(ssh::exec_with_ports(self, self.ports()?.ssh, words, ports)?)
    }

    /// The same, with a socket of this host that leads to one of the machine's while it runs. Neither path may have a colon.
    pub fn exec_with_socket(
        &self,
        words: &[String],
        local: &std::path::Path,
        remote: &str,
    ) -> Result<std::process::Command, NotRunning> {
        Ok(ssh::exec_with_socket(self, self.ports()?.ssh, words, local, remote)?)
    }

    /// A command that opens a shell in the machine on this process's terminal.
    pub fn shell(&self) -> Result<std::process::Command, NotRunning> {
        Ok(ssh::shell(self, self.ports()?.ssh)?)
    }

    /// The machine's ports. Only the process is looked at: their users find out about the rest.
    pub(crate) fn ports(&self) -> Result<Ports, NotRunning> {
        let run = RunState::read(self.directory())?;
        let state = match &run {
            None => MachineState::Stopped,
            Some(run) if !run.process.is_alive() => MachineState::Crashed,
            Some(run) if !run.ready => MachineState::Starting,
            Some(_) => MachineState::Running,
        };
        match (state, run.and_then(|run| run.ports)) {
            (MachineState::Running, Some(ports)) => Ok(ports),
            _ => Err(NotRunning::State { name: self.name.clone(), state: state.name() }),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum NotRunning {
    #[error("machine {name} is {state}; start it with: forkd machine start --name {name}")]
    State { name: Name, state: &'static str },
    #[error(transparent)]
    Ssh(#[from] ssh::SshError),
    #[error(transparent)]
    File(#[from] FileError),
}

/// The status of every machine.
pub fn list(home: &Home) -> Result<Vec<MachineStatus>, OpenError> {
    let mut statuses = Vec::new();
    for name in home.names()? {
        match Machine::open(home, &name) {
            Ok(machine) => statuses.push(machine.status()?),
            // Removed while this was looking.
            Err(OpenError::NoMachine(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(statuses)
}
