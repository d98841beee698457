//! `forkd dev`: one guest, with its agent on ports of the loopback.

use std::io;
use std::os::unix::process::CommandExt;
use std::time::{Duration, Instant};

use forkd_engine::agent::Agent;
use forkd_engine::boot::{DiskPlan, Plan, boot, command_line};
use forkd_engine::bring_up::{ImageConfig, bring_up};
use forkd_engine::library::Size;
use forkd_envd::port::{ENVD, INTERPRETER};
use forkd_host::{home, kvm};
use forkd_image::images::{Image, ImageStore};
use forkd_image::kernels::KernelStore;
use forkd_machine::{Home, Machine, Progress as _};
use forkd_proto::probe::KvmFinding;
use tokio::io::copy_bidirectional;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::say;
use crate::arguments::DevOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

/// How long a guest may take to boot, also in an emulator.
const LIMIT: Duration = Duration::from_secs(300);

/// Where the guest's files are made. What it writes to its disk may be large, and /tmp is often memory.
const DIRECTORY: &str = "/var/tmp";

/// What the library does, as this command shows it.
struct Shown<'a>(&'a Progress);

impl forkd_image::Progress for Shown<'_> {
    fn step(&self, what: &str) {
        self.0.step(what);
    }

    fn detail(&self, what: &str) {
        self.0.detail(what);
    }

    fn warn(&self, what: &str) {
        self.0.warn(what);
    }
}

pub fn run(options: &DevOptions) -> Result<Exit, CliError> {
    let library = home::library()?;
    let binaries = home::binaries().map_err(CliError::Binaries)?;
    let image = ImageStore::new(&library).find(&options.image).map_err(CliError::of_verb)?;
    let progress = Progress::new();
    let shown = Shown(&progress);
    let kernel = KernelStore::new(&library).ensure_default(&shown).map_err(CliError::of_verb)?;
    let initramfs = kernel.initramfs(&binaries.join("forkd-agent"), &shown).map_err(CliError::of_verb)?;
    progress.finish();
    let size = Size::of(&image, options.vcpus, options.memory, options.disk);
    match kvm::probe(&binaries)?.kvm {
        KvmFinding::Good { .. } => {}
        _ => return in_machine(options, size),
    }

    let directory = tempfile::Builder::new().prefix("forkd-dev-").tempdir_in(DIRECTORY);
    let directory = directory.map_err(|error| CliError::Io("make a directory", error))?;
    let plan = Plan {
        program: binaries.join("forkd-vmm"),
        kernel: kernel.vmlinux(),
        initramfs,
        disk: DiskPlan { base: image.base(), layers: Vec::new(), top: None, bytes: size.disk_mib << 20 },
        vcpus: size.vcpus,
        memory_bytes: size.memory_mib << 20,
        command_line: command_line(forkd_host::is_emulated()),
        network: None,
        cgroups: None,
        directory: directory.path().into(),
        limit: LIMIT,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| CliError::Io("start", error))?;
    runtime.block_on(serve(options, &plan, &image))
}

/// The same command in the machine, which finds everything made by this one. Its ports are this host's.
fn in_machine(options: &DevOptions, size: Size) -> Result<Exit, CliError> {
    let machine = Machine::open(&Home::new(home::directory()?), &options.machine)?;
    let library = format!("{}={}", home::LIBRARY_VARIABLE, forkd_machine::LIBRARY);
    let mut words: Vec<String> =
        ["env", &library, forkd_machine::FORKD, "dev", &options.image].map(String::from).into();
    for (name, value) in [
        ("--vcpus", u64::from(size.vcpus)),
        ("--memory", size.memory_mib),
        ("--disk", size.disk_mib),
        ("--envd-port", u64::from(options.envd_port)),
        ("--interpreter-port", u64::from(options.interpreter_port)),
    ] {
        words.extend([name.to_owned(), value.to_string()]);
    }
    say(&format!("This host's KVM cannot run guests; machine {} will.", machine.name));
    let mut command = machine.exec_with_ports(&words, &[options.envd_port, options.interpreter_port])?;
    // In place of this process, so that a signal to this one ends it.
    Err(CliError::Io("start ssh", command.exec()))
}

async fn serve(options: &DevOptions, plan: &Plan, image: &Image) -> Result<Exit, CliError> {
    let begun = Instant::now();
    let vm = boot(plan).await.map_err(CliError::of_verb)?;
    let config = ImageConfig::of(&image.metadata);
    bring_up(&vm.agent, &config, "forkd-dev", LIMIT).await.map_err(CliError::of_verb)?;
    let seconds = begun.elapsed().as_secs_f64();
    let ports = [(options.envd_port, ENVD), (options.interpreter_port, INTERPRETER)];
    for (port, guest_port) in ports {
        let listener = TcpListener::bind(("127.0.0.1", port)).await;
        let listener = listener.map_err(|error| CliError::Io("listen on the loopback", error))?;
        tokio::spawn(forward(listener, vm.agent.clone(), guest_port));
    }
    say(&format!(
        "{} is ready, after {seconds:.1} s: envd on port {}, interpreter on port {}. Ctrl-C ends it.",
        options.image, options.envd_port, options.interpreter_port
    ));
    tokio::select! {
        asked = asked_to_end() => asked.map(|()| Exit::Success),
        status = vm.process.status() => {
            let status = status.map_or_else(|| "an unknown status".into(), |status| status.to_string());
            Err(CliError::Io("continue", io::Error::other(format!("the VM exited with {status}"))))
        }
    }
}

/// Ctrl-C, an ordinary end, or the end of the terminal: in the machine that is the end of the connection.
async fn asked_to_end() -> Result<(), CliError> {
    let stream = |kind| signal(kind).map_err(|error| CliError::Io("wait for signals", error));
    let mut interrupt = stream(SignalKind::interrupt())?;
    let mut terminate = stream(SignalKind::terminate())?;
    let mut hangup = stream(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// Each connection to the listener becomes one to the guest.
async fn forward(listener: TcpListener, agent: Agent, guest_port: u16) {
    while let Ok((mut client, _)) = listener.accept().await {
        let guest = agent.guest().clone();
        tokio::spawn(async move {
            if let Ok(mut guest) = guest.connect(guest_port.into()).await {
                // Whichever side breaks the connection has its reasons.
                let _ = copy_bidirectional(&mut client, &mut guest).await;
            }
        });
    }
}
