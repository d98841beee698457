//! A stock Linux kernel under the engine: console, disk and entropy always, a keyboard, a network and vsock where wanted.
//!
//! | in the guest | what |
//! |---|---|
//! | `/dev/ttyS0` | the console: a file, and a pipe for what is typed |
//! | `/dev/vda` | an ext4 file system, mounted at `/mnt` |
//! | `eth0` | the network |

mod disk;
pub mod echo;
pub mod image;
pub mod network;
mod vm;
pub mod vsock;

use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use forkd_proto::control::{Boot, Command, CpuModel, Descriptor, Devices, Disk, Event, Fork, Net, Vsock};

use super::process::{Control, Failure, Started, start, temporary};
pub use vm::{LinuxVm, LinuxZygote};

/// Two of these are for the machine, whose emulated SVM differs from a CPU's:
///
/// - Without XSAVE: there is no exit for XSETBV, so KVM does not learn that its guest has enabled AVX. CPUID then tells the
///   guest the wrong size of its vector state, of which its kernel complains, and a copy of it would come without AVX.
/// - With the soft lockup detector: VMRUN forgets the interrupt shadow of STI. A vCPU that is preempted between STI and HLT
///   takes its next interrupt before the HLT, and then sleeps although the interrupt has brought it work. Without a tick
///   nothing wakes it again. The detector's timer does, on every vCPU, every 12 seconds with this threshold.
const COMMAND_LINE: &str =
    "console=ttyS0 panic=-1 noxsave nmi_watchdog=0 watchdog_thresh=30 tsc=reliable mitigations=off quiet";
const MEMORY: u64 = 256 << 20;

/// What a guest is to be.
#[derive(Debug, Default)]
pub struct Plan<'a> {
    pub vcpus: u8,
    /// The script that the kernel starts.
    pub init: &'a str,
    /// Modules beside those of the disk and the entropy device.
    pub modules: &'a [&'a str],
    /// Programs beside busybox, from where forkd's own are.
    pub programs: &'a [&'a str],
    /// Whether somebody types at the console.
    pub keyboard: bool,
    pub net: Option<Net>,
    pub vsock: bool,
}

/// What guests are made of.
#[derive(Debug)]
pub struct Setup {
    kernel: File,
    initramfs: File,
    base: File,
    vcpus: u8,
    /// Of every guest; only the vsock id differs.
    devices: Devices,
    next_cid: AtomicU32,
    /// Consoles, layers and sockets go here.
    directory: PathBuf,
}

impl Setup {
    /// The running kernel of this host, an initial RAM disk, and a disk with an empty file system.
    pub fn new(directory: &Path, plan: &Plan<'_>) -> Result<Setup, Failure> {
        let (kernel, initramfs) = image::make(plan)?;
        let base = disk::file_system(directory)?;
        let bytes = base.metadata()?.len();
        let devices = Devices {
            serial: true,
            serial_input: plan.keyboard,
            disks: vec![Disk { bytes, limit_bytes: bytes, base: true, layers: 0, read_only: false }],
            net: plan.net,
            vsock: plan.vsock.then_some(Vsock { cid: 0 }),
            entropy: true,
            mailbox: false,
        };
        Ok(Setup {
            kernel: temporary(&kernel)?,
            initramfs: temporary(&initramfs)?,
            base,
            vcpus: plan.vcpus,
            devices,
            next_cid: AtomicU32::new(3),
            directory: directory.into(),
        })
    }

    /// The image below every guest's disk.
    pub fn base(&self) -> &File {
        &self.base
    }

    /// An empty file for a layer or a console.
    fn file(&self, name: &str) -> Result<File, Failure> {
        let path = self.directory.join(name);
        Ok(OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?)
    }

    /// What a new guest of this name will have for its own.
    pub fn own(&self, name: &str) -> Result<Own, Failure> {
        let socket = self.directory.join(format!("{name}.vsock"));
        let mut devices = self.devices.clone();
        let mut vsock = None;
        if let Some(device) = &mut devices.vsock {
            device.cid = self.next_cid.fetch_add(1, Ordering::Relaxed);
            vsock = Some(UnixListener::bind(&socket)?);
        }
        let (input, keyboard) = pipe()?;
        Ok(Own {
            devices,
            console: self.file(&format!("{name}.console"))?,
            console_path: self.directory.join(format!("{name}.console")),
            input,
            keyboard,
            top: self.file(&format!("{name}.top"))?,
            tap: None,
            vsock,
            socket,
            entropy: File::open("/dev/urandom")?,
        })
    }

    /// Boots a guest.
    pub fn boot(&self, own: Own) -> Result<(Started, LinuxVm), Failure> {
        let (started, mut control) = start()?;
        let request = Command::Boot(Boot {
            vcpus: self.vcpus,
            memory_bytes: MEMORY,
            command_line: COMMAND_LINE.into(),
            initramfs: true,
            cpu: CpuModel::Host,
            devices: own.devices.clone(),
        });
        let descriptor = |wanted| match wanted {
            Descriptor::Kernel => Ok(self.kernel.as_fd()),
            Descriptor::Initramfs => Ok(self.initramfs.as_fd()),
            Descriptor::DiskBase => Ok(self.base.as_fd()),
            wanted => own.descriptor(wanted),
        };
        let descriptors: Vec<_> =
            request.descriptors().into_iter().map(descriptor).collect::<Result<_, _>>()?;
        control.must(request, &descriptors)?;
        Ok((started, own.into_vm(control, &[])?))
    }

    /// Forks a guest from a zygote.
    pub fn fork(&self, zygote: &mut LinuxZygote, own: Own) -> Result<LinuxVm, Failure> {
        let (mut control, theirs) = Control::new()?;
        let request =
            Command::Fork(Fork { cgroup: false, successor: false, uid: None, devices: own.devices.clone() });
        let descriptor = |wanted| match wanted {
            Descriptor::Control => Ok(theirs.as_fd()),
            wanted => own.descriptor(wanted),
        };
        let descriptors: Vec<_> =
            request.descriptors().into_iter().map(descriptor).collect::<Result<_, _>>()?;
        zygote.control.must(request, &descriptors)?;
        match vm::next_event(&mut control)? {
            Event::Running => own.into_vm(control, &zygote.layers),
            other => Err(format!("a fork says {other:?}").into()),
        }
    }
}

/// What is one guest's own.
#[derive(Debug)]
pub struct Own {
    devices: Devices,
    console: File,
    console_path: PathBuf,
    input: PipeReader,
    keyboard: PipeWriter,
    top: File,
    tap: Option<OwnedFd>,
    vsock: Option<UnixListener>,
    socket: PathBuf,
    entropy: File,
}

impl Own {
    /// The same with this tap for its network.
    pub fn with_tap(self, tap: OwnedFd) -> Own {
        Own { tap: Some(tap), ..self }
    }

    fn descriptor(&self, wanted: Descriptor) -> Result<BorrowedFd<'_>, Failure> {
        let found = match wanted {
            Descriptor::Serial => Some(self.console.as_fd()),
            Descriptor::SerialInput => Some(self.input.as_fd()),
            Descriptor::DiskTop => Some(self.top.as_fd()),
            Descriptor::Tap => self.tap.as_ref().map(AsFd::as_fd),
            Descriptor::Vsock => self.vsock.as_ref().map(AsFd::as_fd),
            Descriptor::Entropy => Some(self.entropy.as_fd()),
            _ => None,
        };
        found.ok_or_else(|| format!("the guest has no {wanted:?}").into())
    }

    fn into_vm(self, control: Control, below: &[File]) -> Result<LinuxVm, Failure> {
        let mut layers = copies(below)?;
        layers.push(self.top);
        Ok(LinuxVm::new(control, self.console_path, self.keyboard, self.socket, layers))
    }
}

fn copies(files: &[File]) -> Result<Vec<File>, Failure> {
    Ok(files.iter().map(File::try_clone).collect::<Result<_, _>>()?)
}

/// The version of the running kernel.
fn kernel_version() -> Result<String, Failure> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}
