//! A guest's kernel and initial RAM disk, made of what this host has.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use forkd_image::initramfs::Initramfs;
use forkd_image::kernel::to_elf;
use forkd_image::modules::ModuleTree;

use super::{Plan, kernel_version};
use crate::binaries;
use crate::engine::process::Failure;

/// Every guest's.
const MODULES: [&str; 5] = ["virtio_mmio", "virtio_blk", "virtio_rng", "crc32c_generic", "ext4"];

/// Where an unpacked kernel is kept.
const KEPT: &str = "/var/tmp";

/// How every script for the kernel to start begins: ends with the disk at /mnt.
pub const PREPARE: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in /modules/*.ko; do insmod $module; done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.05; done
mount -t ext4 /dev/vda /mnt || poweroff -f
"#;

/// A shell on the console. When it is left, the guest unmounts its disk and switches itself off.
pub const SHELL: &str = r#"export PS1='guest# '
setsid sh -c 'exec sh -i </dev/ttyS0 >/dev/ttyS0 2>&1'
umount /mnt && echo "guest: done"
poweroff -f
"#;

/// The kernel as an ELF file, and the initial RAM disk.
pub(super) fn make(plan: &Plan<'_>) -> Result<(Vec<u8>, Vec<u8>), Failure> {
    let version = kernel_version()?;
    let kernel = kernel(Path::new(&format!("/boot/vmlinuz-{version}")))?;
    let tree = ModuleTree::open(Path::new(&format!("/lib/modules/{version}")))?;

    let mut files = Tree { archive: Initramfs::new(), directories: Vec::new() };
    for name in ["dev", "proc", "sys", "mnt"] {
        files.directory(Path::new(name))?;
    }
    files.file(Path::new("init"), 0o755, format!("{PREPARE}{}", plan.init).as_bytes())?;
    files.copy(Path::new("/bin/busybox"), Path::new("bin/busybox"))?;
    let modules = [&MODULES[..], plan.modules].concat();
    for (number, module) in tree.load_order(&modules)?.iter().enumerate() {
        files.copy(module, Path::new(&format!("modules/{number:02}.ko")))?;
    }
    for name in plan.programs {
        let program = binaries::directory().join(name);
        for library in libraries(&program)? {
            files.copy(&library, library.strip_prefix("/")?)?;
        }
        files.copy(&program, &Path::new("bin").join(name))?;
    }
    Ok((kernel, files.archive.finish()?))
}

/// The kernel as an ELF file. It is kept for the next test: in the machine, unpacking it takes longer than booting it.
fn kernel(packed: &Path) -> Result<Vec<u8>, Failure> {
    let metadata = fs::metadata(packed)?;
    let changed = metadata.modified()?.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let kept = PathBuf::from(format!("{KEPT}/forkd-test-kernel-{}-{changed}", metadata.len()));
    if let Ok(kernel) = fs::read(&kept) {
        return Ok(kernel);
    }
    let kernel = to_elf(fs::read(packed)?)?;
    let mut file = tempfile::NamedTempFile::new_in(KEPT)?;
    file.write_all(&kernel)?;
    file.persist(kept)?;
    Ok(kernel)
}

/// The libraries that a program is linked with, the loader among them, each at the path where the program will look.
fn libraries(program: &Path) -> Result<Vec<PathBuf>, Failure> {
    let output = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(PathBuf::from)
        .collect())
}

/// An archive that makes directories as they are needed.
struct Tree {
    archive: Initramfs,
    directories: Vec<PathBuf>,
}

impl Tree {
    fn directory(&mut self, path: &Path) -> Result<(), Failure> {
        if path.as_os_str().is_empty() || self.directories.iter().any(|made| made == path) {
            return Ok(());
        }
        self.directory(path.parent().unwrap_or(Path::new("")))?;
        self.archive.directory(text(path)?)?;
        self.directories.push(path.into());
        Ok(())
    }

    fn file(&mut self, path: &Path, permissions: u32, content: &[u8]) -> Result<(), Failure> {
        self.directory(path.parent().unwrap_or(Path::new("")))?;
        Ok(self.archive.file(text(path)?, permissions, content)?)
    }

    fn copy(&mut self, from: &Path, to: &Path) -> Result<(), Failure> {
        self.file(to, 0o755, &fs::read(from)?)
    }
}

fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| format!("{} is not text", path.display()).into())
}
