//! Guests of a build in the machine: `forkd build-guest` keeps one there, and what it wrote comes back when it has ended.
//!
//! ```text
//!   here                                     machine
//!   request, one line ─────────────────────▶ boots a guest: base and layers from the library (9p)
//!                     ◀───────────────────── "ready"
//!   socket ═══════════════ ssh ════════════▶ the guest's socket: everything goes through its agent
//!   "end" ─────────────────────────────────▶ waits for the guest's end
//!   top   ◀───────────────────────────────── the layer, as a sparse stream
//! ```
//!
//! When this process or the connection ends, the machine's side sees the end of its input, and ends the guest.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use forkd_build::{Guests, GuestsError, Machinery, RunningGuest, Wait};
use forkd_engine::VSOCK;
use forkd_engine::agent::Agent;
use forkd_engine::boot::DiskPlan;
use forkd_engine::guest::Guest;
use forkd_engine::shutdown::ask_for_end;
use forkd_host::{home, kvm};
use forkd_machine::{FORKD, LIBRARY, Machine, Name};
use serde::{Deserialize, Serialize};

use super::sparse::read_sparse;
use super::{END, READY};

/// On the machine's disk: a layer may be large.
const DIRECTORY: &str = "/var/tmp";
/// Beyond its disk, a layer has its map: a bit for every four KiB, and a little more.
const LAYER_OVERHEAD: u64 = 64 << 20;

/// There is no guest to be had from the machine.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    #[error(transparent)]
    Home(#[from] home::NoHome),
    #[error(transparent)]
    Probe(#[from] kvm::ProbeError),
    #[error(transparent)]
    Open(#[from] forkd_machine::OpenError),
    #[error(transparent)]
    NotRunning(#[from] forkd_machine::NotRunning),
    #[error("could not start a build guest in machine {0}; forkd machine logs may say why")]
    Gone(Name),
    #[error("{} is not in this host's library, which the machine mounts", .0.display())]
    Outside(PathBuf),
}

impl From<MachineError> for GuestsError {
    fn from(error: MachineError) -> GuestsError {
        GuestsError::Other(Box::new(error))
    }
}

/// What a guest in the machine is made of; paths are the machine's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestRequest {
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub base: PathBuf,
    pub layers: Vec<PathBuf>,
    pub disk_bytes: u64,
    pub vcpus: u8,
    pub memory_bytes: u64,
    pub network: bool,
}

/// Guests in a machine.
#[derive(Debug)]
pub struct InMachine {
    pub machine: Machine,
    pub machinery: Machinery,
    pub library: PathBuf,
}

/// A guest in the machine.
#[derive(Debug)]
struct RemoteGuest {
    agent: Agent,
    top: PathBuf,
    ssh: Ssh,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// Of the socket.
    _directory: tempfile::TempDir,
    largest: u64,
    network: bool,
}

/// The connection, which ends with this value.
#[derive(Debug)]
struct Ssh(Child);

impl Drop for Ssh {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The same file as the machine sees it.
fn there(library: &Path, path: &Path) -> Result<PathBuf, MachineError> {
    let inside = path.strip_prefix(library).map_err(|_| MachineError::Outside(path.to_owned()))?;
    Ok(Path::new(LIBRARY).join(inside))
}

impl Guests for InMachine {
    fn start(&self, _: &Wait<'_>, disk: &DiskPlan) -> Result<Box<dyn RunningGuest>, GuestsError> {
        let DiskPlan { base, layers, top, bytes } = disk;
        let top = top.clone().ok_or_else(|| MachineError::Outside(base.clone()))?;
        let InMachine { machine, machinery, library } = self;
        let failed = |what| move |error| GuestsError::Io(what, error);
        let request = GuestRequest {
            kernel: there(library, &machinery.kernel)?,
            initramfs: there(library, &machinery.initramfs)?,
            base: there(library, base)?,
            layers: layers.iter().map(|layer| there(library, layer)).collect::<Result<_, _>>()?,
            disk_bytes: *bytes,
            vcpus: machinery.vcpus,
            memory_bytes: machinery.memory_bytes,
            network: machinery.network,
        };
        let size = base.metadata().map_err(failed("read the base image"))?.len().max(*bytes);
        let directory = tempfile::Builder::new().prefix("forkd-build-").tempdir();
        let directory = directory.map_err(failed("make a directory"))?;
        let socket = directory.path().join(VSOCK);
        // As random as the local one.
        let name = directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let remote = format!("{DIRECTORY}/{name}");
        let words = [FORKD, "build-guest", &remote].map(String::from);
        let remote_socket = format!("{remote}/{}", VSOCK);
        let command = machine.exec_with_socket(&words, &socket, &remote_socket);
        let mut command = command.map_err(MachineError::from)?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut ssh = Ssh(child.map_err(failed("start ssh"))?);
        let (Some(mut orders), Some(answers)) = (ssh.0.stdin.take(), ssh.0.stdout.take()) else {
            return Err(MachineError::Gone(machine.name.clone()).into());
        };
        let mut answers = BufReader::new(answers);
        let gone = |_| MachineError::Gone(machine.name.clone());
        let text = serde_json::to_string(&request).map_err(|error| GuestsError::Io("write", error.into()))?;
        writeln!(orders, "{text}").map_err(gone)?;
        let mut line = String::new();
        answers.read_line(&mut line).map_err(gone)?;
        if line.trim_end() != READY {
            return Err(MachineError::Gone(machine.name.clone()).into());
        }
        let agent = Agent::new(Guest::new(&socket));
        let largest = size + size / 4096 + LAYER_OVERHEAD;
        // The keeper is root in the machine.
        let network = machinery.network;
        let guest = RemoteGuest { agent, top, ssh, orders, answers, _directory: directory, largest, network };
        Ok(Box::new(guest))
    }

    /// The machine believes that files of the library never change.
    fn forget_files(&self) {
        let words = ["sh", "-c", "echo 3 >/proc/sys/vm/drop_caches"].map(String::from);
        if let Ok(mut command) = self.machine.exec(&words) {
            let _ = command.status();
        }
    }
}

impl RunningGuest for RemoteGuest {
    fn agent(&self) -> &Agent {
        &self.agent
    }

    fn has_network(&self) -> bool {
        self.network
    }

    fn finish(mut self: Box<Self>, wait: &Wait<'_>) -> Result<(), GuestsError> {
        wait.until(ask_for_end(&self.agent))?.map_err(GuestsError::Ask)?;
        let lost = |error| GuestsError::Io("get the disk out of the machine", error);
        writeln!(self.orders, "{END}").map_err(lost)?;
        let file = File::options().create_new(true).read(true).write(true).open(&self.top).map_err(lost)?;
        read_sparse(&mut self.answers, &file, self.largest).map_err(lost)?;
        let status = self.ssh.0.wait().map_err(lost)?;
        if status.success() { Ok(()) } else { Err(lost(std::io::Error::other(status.to_string()))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_sees_the_library_only() {
        let library = Path::new("/home/u/library");
        let inside = there(library, Path::new("/home/u/library/builds/x/layer")).unwrap();
        assert_eq!(inside, Path::new("/srv/forkd/builds/x/layer"));
        assert!(matches!(there(library, Path::new("/etc/passwd")), Err(MachineError::Outside(_))));
    }
}
