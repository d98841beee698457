//! Boot: a guest from a kernel and an image, up to the point where its agent answers. A build and `forkd dev` boot a guest that ends
//! with them ([`boot`]); a snapshot is made of one that outlives the daemon. Both are [`boot_in`] a process.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forkd_proto::agent::VERSION;
use forkd_proto::control::{Boot, Command, CpuModel, Descriptor, Devices, Disk, Event, Net, Vsock};
use tokio::sync::mpsc;

use crate::agent::{Agent, AgentError};
use crate::blocking::in_place;
use crate::guest::Guest;
use crate::limits::cgroup::{CgroupError, Cgroups, Leaf};
use crate::limits::quota::default_quota;
use crate::paths::PathError;
use crate::process::control::CallError;
use crate::process::descriptors::{Named, SERIAL_LOG, TOP, VSOCK, create, open};
use crate::process::{ProcessError, VmProcess, WithEvents};
use crate::record::Shape;

/// What a guest is booted from.
#[derive(Debug, Clone)]
pub struct Plan {
    /// `forkd-vmm`.
    pub program: PathBuf,
    /// An ELF kernel.
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub disk: DiskPlan,
    pub vcpus: u8,
    pub memory_bytes: u64,
    pub command_line: String,
    pub network: Option<NetworkPlan>,
    /// Where the VM process is limited to what a sandbox like this has. Without it, it may use as much as it likes.
    pub cgroups: Option<Cgroups>,
    /// An empty directory for the VM's socket and its console.
    pub directory: PathBuf,
    /// How long the guest may take until its agent answers.
    pub limit: Duration,
}

/// A guest's network device.
#[derive(Debug, Clone)]
pub struct NetworkPlan {
    /// As `forkd-net` makes them.
    pub tap: Arc<OwnedFd>,
    pub device: Net,
}

/// What a guest's disk is made of.
///
/// ```text
///   base ── layer 1 ── … ── layer n ── top     earlier guests have written the layers; this one writes the top
/// ```
#[derive(Debug, Clone)]
pub struct DiskPlan {
    /// An image.
    pub base: PathBuf,
    /// The oldest first.
    pub layers: Vec<PathBuf>,
    /// A file that is made. Without one, it is in the guest's directory.
    pub top: Option<PathBuf>,
    /// The disk is as large as this, or as the image if that is larger.
    pub bytes: u64,
}

/// The most layers below a top: their descriptors travel in one message, beside those of the other devices.
pub const MAX_LAYERS: usize = 240;

#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error("the disk has {0} layers, expected at most {MAX_LAYERS} to boot from it")]
    Layers(usize),
    #[error(transparent)]
    File(#[from] PathError),
    #[error(transparent)]
    Start(#[from] ProcessError),
    #[error(transparent)]
    Boot(#[from] CallError),
    #[error("cannot limit the VM process")]
    Limit(#[from] CgroupError),
    #[error("the guest did not start: {0}")]
    Ended(String),
    #[error("the guest's agent did not start; the end of its console:\n{console}")]
    Agent { console: String, source: AgentError },
}

/// A guest whose agent answers. It ends with this value.
#[derive(Debug)]
pub struct BootedVm {
    pub process: VmProcess,
    pub events: mpsc::Receiver<Event>,
    pub agent: Agent,
    /// Removed after the process has ended.
    _cgroup: Option<Leaf>,
}

/// What a VM boots from: a kernel, and the files of its disks, opened.
pub(crate) struct BootFrom<'a> {
    pub shape: &'a Shape,
    pub command_line: &'a str,
    pub kernel: &'a Path,
    pub initramfs: Option<&'a Path>,
    pub disks: Vec<BootDisk>,
    pub tap: Option<OwnedFd>,
    /// How long the guest may take until its agent answers.
    pub limit: Duration,
}

/// See [`DiskPlan`].
#[derive(Debug)]
pub(crate) struct BootDisk {
    pub base: Option<File>,
    pub layers: Vec<File>,
    pub top: File,
}

/// The id of a guest among those that a host's vsock driver would know. Each VM process has its own, so all may be the same.
pub(crate) const CID: u32 = 3;

/// A guest reboots by ending, and its console is the log. Pressure averages are worked out every two seconds for each cgroup: more than
/// half of what a guest does that has nothing to do, and its children pay it by the hundred.
const COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 psi=0";
/// QEMU's emulated SVM does not intercept XSETBV; a guest that does not ask for vector state does not miss it. And it forgets
/// the interrupt shadow of STI, so a vCPU may sleep with work to do: the soft lockup detector's timer wakes it.
const EMULATED: &str = " noxsave nmi_watchdog=0 watchdog_thresh=30 tsc=reliable mitigations=off";

/// The kernel's command line, on a CPU or in an emulator.
pub fn command_line(emulated: bool) -> String {
    format!("{COMMAND_LINE}{}", if emulated { EMULATED } else { "" })
}

/// The console's last lines are what one looks at first.
const CONSOLE_SHOWN: usize = 1500;

/// Boots a guest in a process of its own.
pub async fn boot(plan: &Plan) -> Result<BootedVm, BootError> {
    let DiskPlan { base: image, layers, top, bytes } = &plan.disk;
    let disk_layers = match u8::try_from(layers.len()) {
        Ok(count) if layers.len() <= MAX_LAYERS => count,
        _ => return Err(BootError::Layers(layers.len())),
    };
    let base = open(image)?;
    let bytes = base.metadata().map_err(PathError::at("inspect", image))?.len().max(*bytes);
    let devices = Devices {
        serial: true,
        disks: vec![Disk { bytes, limit_bytes: bytes, base: true, layers: disk_layers, read_only: false }],
        net: plan.network.as_ref().map(|network| network.device),
        vsock: Some(Vsock { cid: CID }),
        entropy: true,
        ..Devices::default()
    };
    let shape = Shape {
        vcpus: plan.vcpus,
        memory_bytes: plan.memory_bytes,
        cpu: CpuModel::Host,
        devices,
        image: None,
        agent_version: VERSION,
    };
    let tap = plan.network.as_ref().map(|network| network.tap.try_clone()).transpose();
    let disk = BootDisk {
        base: Some(base),
        layers: layers.iter().map(|layer| open(layer)).collect::<Result<_, _>>()?,
        top: create(&top.clone().unwrap_or_else(|| plan.directory.join(TOP)))?,
    };
    let from = BootFrom {
        shape: &shape,
        command_line: &plan.command_line,
        kernel: &plan.kernel,
        initramfs: Some(&plan.initramfs),
        disks: vec![disk],
        tap: tap.map_err(PathError::at("use", Path::new("the tap")))?,
        limit: plan.limit,
    };

    let mut cgroup = None;
    let mut process = VmProcess::start(&plan.program)?;
    if let Some(cgroups) = &plan.cgroups {
        let quota = default_quota(plan.vcpus, plan.memory_bytes);
        cgroup = Some(Leaf::of_build(cgroups, process.0.pid.unsigned_abs(), &quota)?);
    }
    let agent = boot_in(&mut process, &plan.directory, from).await?;
    let (process, events) = process;
    Ok(BootedVm { process, events, agent, _cgroup: cgroup })
}

/// Boots the VM of a process that has none yet, and waits for its agent, if it has a way to it. Its own files are made in `directory`.
/// The agent of a VM without a vsock cannot be reached.
pub(crate) async fn boot_in(
    (process, events): &mut WithEvents,
    directory: &Path,
    from: BootFrom<'_>,
) -> Result<Agent, BootError> {
    let BootFrom { shape, command_line, kernel, initramfs, disks, tap, limit } = from;
    let mut named = in_place(|| {
        let named = Named::of_vm(&shape.devices, directory)?.with(Descriptor::Kernel, open(kernel)?);
        match initramfs {
            Some(initramfs) => Ok(named.with(Descriptor::Initramfs, open(initramfs)?)),
            None => Ok::<_, PathError>(named),
        }
    })?;
    for BootDisk { base, layers, top } in disks {
        let base = base.map(|base| (Descriptor::DiskBase, base));
        let layers = layers.into_iter().map(|layer| (Descriptor::DiskLayer, layer));
        for (name, file) in base.into_iter().chain(layers).chain([(Descriptor::DiskTop, top)]) {
            named = named.with(name, file);
        }
    }
    if let Some(tap) = tap {
        named = named.with(Descriptor::Tap, tap);
    }
    let command = Command::Boot(Boot {
        vcpus: shape.vcpus,
        memory_bytes: shape.memory_bytes,
        command_line: command_line.to_owned(),
        initramfs: initramfs.is_some(),
        cpu: shape.cpu,
        devices: shape.devices.clone(),
    });
    let descriptors = named.for_command(&command);
    process.control.call(command, &descriptors).await?;
    drop(descriptors);
    let agent = Agent::new(Guest::new(directory.join(VSOCK)));
    if shape.devices.vsock.is_some() {
        wait_for_agent(&agent, events, directory, limit).await?;
    }
    Ok(agent)
}

/// Waits for the agent's first answer, or for the end of a guest that does not get that far.
async fn wait_for_agent(
    agent: &Agent,
    events: &mut mpsc::Receiver<Event>,
    directory: &Path,
    limit: Duration,
) -> Result<(), BootError> {
    let console = || last_words(directory);
    let answer = agent.wait_for_answer(limit);
    tokio::pin!(answer);
    loop {
        tokio::select! {
            answered = &mut answer => {
                return answered.map_err(|source| BootError::Agent { console: console(), source });
            }
            event = events.recv() => match event {
                // A guest that panics ends soon, and says more then.
                Some(Event::Panicked) => {}
                Some(event) => {
                    return Err(BootError::Ended(format!("{event:?}; the end of its console:\n{}", console())));
                }
                None => return Err(BootError::Ended("its VM process has ended".into())),
            },
        }
    }
}

/// The end of the console's log in a VM's directory.
pub fn last_words(directory: &Path) -> String {
    let text = std::fs::read(directory.join(SERIAL_LOG)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let skipped = text.chars().count().saturating_sub(CONSOLE_SHOWN);
    text.chars().skip(skipped).collect()
}
