//! `start`: boots a machine and waits until it answers.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use forkd_host::disk::{self, DiskError};
use forkd_host::tool::{self, MissingTool};
use forkd_proto::probe::ProbeReport;
use serde::Serialize;

use crate::Progress;
use crate::control;
use crate::files::{self, FileError};
use crate::image::Image;
use crate::lock::{self, LockError};
use crate::machine::{Home, Machine};
use crate::name::Name;
use crate::process::ProcessName;
use crate::qemu::{self, Accelerator};
use crate::qmp::{self, Qmp, QmpError};
use crate::run_state::{Ports, RunState, Share};
use crate::ssh::{self, SshError};
use crate::status::{self, MachineState};

/// A boot takes 8 s on an idle host; this is for a busy one.
const READY_LIMIT: Duration = Duration::from_secs(90);

/// How long sshd may take after the first heartbeat.
const SSH_LIMIT: Duration = Duration::from_secs(30);

/// How long a killed QEMU may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A boot in an emulator hangs once in a great while, and the next one does not.
const ATTEMPTS: u32 = 2;

/// What the machine may write before it is worth starting.
const DISK_HEADROOM: u64 = 64 << 20;

#[derive(Debug)]
pub struct StartOptions {
    /// The directory that the machine sees as /opt/forkd/bin.
    pub binaries: PathBuf,
    /// The directory of kernels and images that the machine sees as /srv/forkd. It is made if it is not there.
    pub library: PathBuf,
    /// What the host's CPU and KVM can do.
    pub host: ProbeReport,
}

/// How the start went.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Started {
    /// The machine was running before.
    pub already: bool,
    /// Boots that it took.
    pub attempts: u32,
    /// From the start of the last QEMU until the machine answered on its heartbeat and on ssh.
    pub ready_ms: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("machine {0} does not answer; end it with: forkd machine stop --force --name {0}")]
    Unresponsive(Name),
    #[error(
        "the image {image} of machine {name} is missing; make the machine again: forkd machine rm --name {name}, then forkd machine init --name {name}"
    )]
    NoImage { name: Name, image: String },
    #[error("QEMU ended before the machine was up:\n{0}")]
    Died(String),
    #[error("the machine did not come up within {} s, {ATTEMPTS} times; the end of its console:\n{console}", READY_LIMIT.as_secs())]
    Hung { console: String },
    #[error("QEMU did not report which ports it forwards")]
    NoPorts,
    #[error("QEMU did not start")]
    Spawn(#[source] io::Error),
    #[error(transparent)]
    Tool(#[from] MissingTool),
    #[error(transparent)]
    Disk(#[from] DiskError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error(transparent)]
    Qmp(#[from] QmpError),
    #[error(transparent)]
    Ssh(#[from] SshError),
}

/// Starts the machine, or finishes a start that was interrupted, or finds it running.
pub fn start(
    home: &Home,
    machine: &Machine,
    options: &StartOptions,
    progress: &dyn Progress,
) -> Result<Started, StartError> {
    for tool in [tool::QEMU, tool::SSH] {
        tool.find()?;
    }
    let directory = machine.directory();
    let _lock = lock::lock(directory, progress)?;
    let already = Started { already: true, attempts: 0, ready_ms: 0 };
    let inspection = status::inspect(directory)?;
    match (inspection.state, inspection.run) {
        (MachineState::Running, Some(run)) => {
            if Share::of(&options.binaries).ok().as_ref() != Some(&run.binaries) {
                progress.warn(&format!(
                    "the machine was started with the binaries in {}; stop and start it to change that",
                    run.binaries.path.display()
                ));
            }
            Ok(already)
        }
        (MachineState::Starting, Some(run)) => {
            progress.step("continuing an interrupted start");
            let process = run.process;
            match await_ready(machine, run, Instant::now()) {
                Ok(()) => Ok(already),
                Err(_) => {
                    process.end(KILL_LIMIT);
                    boot(home, machine, options, progress)
                }
            }
        }
        (MachineState::Paused, Some(run)) => {
            disk::require(directory, DISK_HEADROOM, "continuing")?;
            Qmp::connect(directory, status::PULSE_LIMIT)?.execute("cont", serde_json::json!({}))?;
            await_ready(machine, run, Instant::now()).map_err(Failure::into_error)?;
            Ok(already)
        }
        (MachineState::Unresponsive, _) => Err(StartError::Unresponsive(machine.name.clone())),
        (MachineState::Stopped | MachineState::Crashed, _) | (_, None) => {
            boot(home, machine, options, progress)
        }
    }
}

fn boot(
    home: &Home,
    machine: &Machine,
    options: &StartOptions,
    progress: &dyn Progress,
) -> Result<Started, StartError> {
    let directory = machine.directory();
    let image = Image::open(home, &machine.config.image)?.ok_or_else(|| StartError::NoImage {
        name: machine.name.clone(),
        image: machine.config.image.clone(),
    })?;
    if !machine.is_current() {
        progress
            .warn("the machine was made by another version of forkd; rm and init give it the current image");
    }
    disk::require(directory, DISK_HEADROOM, "starting a machine")?;
    // A `start` that was killed between starting QEMU and writing that down has left one that only the kernel knows of.
    if let Some(orphan) = qmp::owner(directory) {
        progress.detail("stopping a QEMU left by an earlier start");
        orphan.end(KILL_LIMIT);
    }

    let mut attempts = 0;
    loop {
        attempts += 1;
        RunState::clear(directory)?;
        progress.step(&format!("starting machine {}", machine.name));
        let begun = Instant::now();
        let run = launch(machine, &image, options)?;
        let process = run.process;
        let failure = match await_ready(machine, run, begun) {
            Ok(()) => {
                let ready_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                return Ok(Started { already: false, attempts, ready_ms });
            }
            Err(failure) => failure,
        };
        process.end(KILL_LIMIT);
        match failure {
            Failure::Hung(_) if attempts < ATTEMPTS => {
                progress.warn(
                    "the machine's boot hung, as it does now and then under emulation; trying once more",
                );
            }
            failure => {
                RunState::clear(directory)?;
                return Err(failure.into_error());
            }
        }
    }
}

/// Starts QEMU and writes down that it runs.
fn launch(machine: &Machine, image: &Image, options: &StartOptions) -> Result<RunState, StartError> {
    let directory = machine.directory();
    let log_path = machine.file("qemu.log");
    keep_previous(&machine.console_log())?;
    let log = File::create(&log_path).map_err(FileError::at("write", &log_path))?;
    let accelerator = Accelerator::choose(&options.host.kvm);
    let binaries = Share::of(&options.binaries)?;
    fs::create_dir_all(&options.library).map_err(FileError::at("create", &options.library))?;
    let shares = qemu::Shares { binaries: &binaries.path, library: &options.library };
    let mut qemu = qemu::command(machine, image, &shares, accelerator, options.host.tsc_khz)?;
    let mut child = qemu
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(FileError::at("write", &log_path))?)
        .stderr(log)
        // A group of its own: the terminal's Ctrl-C is not for the machine.
        .process_group(0)
        .spawn()
        .map_err(StartError::Spawn)?;
    let process = i32::try_from(child.id()).ok().and_then(ProcessName::of);
    // QEMU outlives this process; until then it has to be collected when it ends.
    std::thread::spawn(move || child.wait());
    let process = process.ok_or_else(|| StartError::Died(files::tail(&log_path, 3)))?;
    let started_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let run = RunState { process, accelerator, started_at, binaries, ports: None, ready: false };
    if let Err(error) = run.write(directory) {
        process.kill();
        return Err(error.into());
    }
    Ok(run)
}

/// The console of the run before this one stays readable: it may hold the reason of a crash.
fn keep_previous(log: &std::path::Path) -> Result<(), FileError> {
    match fs::rename(log, log.with_extension("log.1")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(FileError::at("rename", log)(error)),
        _ => Ok(()),
    }
}

/// Why a boot failed.
enum Failure {
    /// QEMU lives, the machine does not answer.
    Hung(String),
    Error(StartError),
}

impl Failure {
    fn into_error(self) -> StartError {
        match self {
            Failure::Hung(console) => StartError::Hung { console },
            Failure::Error(error) => error,
        }
    }
}

impl<E: Into<StartError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Error(error.into())
    }
}

/// Waits for QEMU, then for the heartbeat, then for ssh, and writes down what became known.
fn await_ready(machine: &Machine, mut run: RunState, begun: Instant) -> Result<(), Failure> {
    let directory = machine.directory();
    let hung = || Failure::Hung(files::tail(&machine.console_log(), 10));
    let still_waiting = |run: &RunState| {
        if !run.process.is_alive() {
            return Err(Failure::Error(StartError::Died(last_words(machine))));
        }
        if begun.elapsed() > READY_LIMIT { Err(hung()) } else { Ok(()) }
    };

    let ports = loop {
        if let Some(ports) = run.ports {
            break ports;
        }
        still_waiting(&run)?;
        match Qmp::connect(directory, status::PULSE_LIMIT) {
            Ok(mut qmp) => {
                let ports: Ports =
                    qemu::forwarded_ports(&qmp.human("info usernet")?).ok_or(StartError::NoPorts)?;
                run.ports = Some(ports);
                run.write(directory)?;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    while control::ping(directory, Duration::from_millis(500)).is_err() {
        still_waiting(&run)?;
        std::thread::sleep(Duration::from_millis(50));
    }
    // The heartbeat may come before sshd listens.
    let patience = Instant::now() + SSH_LIMIT;
    while let Err(error) = ssh::open(machine, ports.ssh) {
        still_waiting(&run)?;
        if Instant::now() > patience {
            return Err(error.into());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    run.ready = true;
    Ok(run.write(directory)?)
}

/// What QEMU said, without its list of CPU features that the emulator lacks, and what the machine said.
fn last_words(machine: &Machine) -> String {
    let qemu = files::tail(&machine.file("qemu.log"), 60);
    let qemu = qemu.lines().filter(|line| !line.contains("TCG doesn't support requested feature"));
    let console = files::tail(&machine.console_log(), 5);
    qemu.chain(console.lines()).collect::<Vec<_>>().join("\n")
}
