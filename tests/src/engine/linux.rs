//! A stock Linux kernel under the engine, with a console and a disk.

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forkd_image::initramfs::Initramfs;
use forkd_image::kernel::to_elf;
use forkd_image::modules::ModuleTree;
use forkd_proto::control::{Boot, Branch, Command, Devices, Disk, Event, ExitReason, Fork, Reply};

use super::process::{Control, Failure, Started, start, temporary};

/// In the machine a guest's kernel says that the emulator miscounts its vector state; without XSAVE it does not ask.
const COMMAND_LINE: &str = "console=ttyS0 panic=-1 nowatchdog tsc=reliable noxsave mitigations=off quiet";

/// What a guest is made of.
#[derive(Debug)]
pub struct Setup {
    kernel: File,
    initramfs: File,
    base: File,
    pub disk: Disk,
    pub vcpus: u8,
    /// Consoles and layers go here.
    directory: PathBuf,
}

impl Setup {
    /// The running kernel of this host, an initial RAM disk whose first process is `init`, and a disk over `base`.
    pub fn new(
        directory: &Path,
        init: &str,
        modules: &[&str],
        base: File,
        vcpus: u8,
    ) -> Result<Setup, Failure> {
        let version = fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        let kernel = to_elf(fs::read(format!("/boot/vmlinuz-{version}"))?)?;
        let tree = ModuleTree::open(Path::new(&format!("/lib/modules/{version}")))?;
        let mut ramdisk = Initramfs::new();
        for name in ["bin", "dev", "proc", "sys", "mnt", "modules"] {
            ramdisk.directory(name)?;
        }
        ramdisk.file("init", 0o755, init.as_bytes())?;
        ramdisk.file("bin/busybox", 0o755, &fs::read("/bin/busybox")?)?;
        for (number, module) in tree.load_order(modules)?.iter().enumerate() {
            ramdisk.file(&format!("modules/{number:02}.ko"), 0o644, &fs::read(module)?)?;
        }
        let bytes = base.metadata()?.len();
        let disk = Disk { bytes, limit_bytes: bytes, base: true };
        let (kernel, initramfs) = (temporary(&kernel)?, temporary(&ramdisk.finish()?)?);
        Ok(Setup { kernel, initramfs, base, disk, vcpus, directory: directory.into() })
    }

    fn devices(&self) -> Devices {
        Devices { console: true, disk: Some(self.disk), entropy: true, ..Devices::default() }
    }

    /// An empty file for a layer or a console.
    pub fn file(&self, name: &str) -> Result<File, Failure> {
        let path = self.directory.join(name);
        Ok(OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?)
    }

    pub fn base(&self) -> &File {
        &self.base
    }

    /// Boots the guest.
    pub fn boot(&self, name: &str) -> Result<(Started, LinuxVm), Failure> {
        let (started, mut control) = start()?;
        let request = Boot {
            vcpus: self.vcpus,
            memory_bytes: 256 << 20,
            command_line: COMMAND_LINE.into(),
            initramfs: true,
            devices: self.devices(),
        };
        let own = Own::new(self, name)?;
        let mut descriptors =
            vec![self.kernel.as_fd(), self.initramfs.as_fd(), own.console.as_fd(), self.base.as_fd()];
        descriptors.extend([own.top.as_fd(), own.entropy.as_fd()]);
        control.must(Command::Boot(request), &descriptors)?;
        Ok((started, own.into_vm(control)))
    }

    /// Forks a guest from a zygote.
    pub fn fork(&self, zygote: &mut Control, name: &str) -> Result<LinuxVm, Failure> {
        let (mut control, theirs) = Control::new()?;
        let own = Own::new(self, name)?;
        let request = Fork { cgroup: false, successor: false, devices: self.devices() };
        let descriptors: [BorrowedFd<'_>; 4] =
            [theirs.as_fd(), own.console.as_fd(), own.top.as_fd(), own.entropy.as_fd()];
        zygote.must(Command::Fork(request), &descriptors)?;
        match control.event()? {
            Event::Running => Ok(own.into_vm(control)),
            other => Err(format!("a fork says {other:?}").into()),
        }
    }
}

/// What is one guest's own.
struct Own {
    console: File,
    console_path: PathBuf,
    top: File,
    entropy: File,
}

impl Own {
    fn new(setup: &Setup, name: &str) -> Result<Own, Failure> {
        Ok(Own {
            console: setup.file(&format!("{name}.console"))?,
            console_path: setup.directory.join(format!("{name}.console")),
            top: setup.file(&format!("{name}.top"))?,
            entropy: File::open("/dev/urandom")?,
        })
    }

    fn into_vm(self, control: Control) -> LinuxVm {
        LinuxVm { control, console: self.console_path, tops: vec![self.top] }
    }
}

/// A running guest.
#[derive(Debug)]
pub struct LinuxVm {
    pub control: Control,
    console: PathBuf,
    /// The layers that it wrote, the oldest first; the last one is its top.
    pub tops: Vec<File>,
}

impl LinuxVm {
    /// What is on the console.
    pub fn console(&self) -> Result<String, Failure> {
        Ok(String::from_utf8_lossy(&fs::read(&self.console)?).into_owned())
    }

    /// Waits until the console says this.
    pub fn wait_for(&self, words: &str, limit: Duration) -> Result<(), Failure> {
        let begun = Instant::now();
        while !self.console()?.contains(words) {
            if begun.elapsed() > limit {
                return Err(format!("the guest did not say {words:?}; it said:\n{}", self.console()?).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Waits until the guest has switched itself off.
    pub fn wait_for_end(&mut self) -> Result<(), Failure> {
        match self.control.event()? {
            Event::Exited { reason: ExitReason::Shutdown, .. } => Ok(()),
            other => Err(format!("the guest ended with {other:?}:\n{}", self.console()?).into()),
        }
    }

    /// Branches off a zygote; the guest goes on with a new top layer.
    pub fn branch(&mut self, setup: &Setup, name: &str) -> Result<(Control, Duration), Failure> {
        let (mut zygote, theirs) = Control::new()?;
        let top = setup.file(&format!("{name}.top"))?;
        let request = Branch { cgroup: false, disk: true };
        let reply = self.control.must(Command::Branch(request), &[theirs.as_fd(), top.as_fd()])?;
        self.tops.push(top);
        match (reply.0, zygote.event()?) {
            (Reply::Branched { pause_us, .. }, Event::Zygote) => {
                Ok((zygote, Duration::from_micros(pause_us)))
            }
            other => Err(format!("a branch says {other:?}").into()),
        }
    }
}
