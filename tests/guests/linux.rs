//! `linux-guest VCPUS BRANCHES CHILDREN`, started by an end-to-end test on a KVM host.
//!
//! Boots the host's own stock kernel with an ext4 disk, branches it while it writes, and forks children from each branch.
//! Every guest goes on writing, verifies every file on its disk, unmounts it and switches itself off; then the layers of
//! each disk are put together and `e2fsck` has the last word. One JSON object on stdout.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use forkd_devices::disk::{Layer, LayerStack, LayeredDisk};
use forkd_tests::engine::linux::{LinuxVm, Setup};
use forkd_tests::engine::process::Failure;
use forkd_tests::measure::{print, raise_descriptor_limit};
use serde_json::json;

const DISK: u64 = 64 << 20;
const FILES: usize = 40;
const PATIENCE: Duration = Duration::from_secs(300);

/// Writes files with their sums, then checks them all.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
for module in /modules/*.ko; do insmod $module; done
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.05; done
mount -t ext4 /dev/vda /mnt || poweroff -f
i=0
while [ $i -lt FILES ]; do
    i=$((i + 1))
    dd if=/dev/urandom of=/mnt/data$i bs=4096 count=8 2>/dev/null
    (cd /mnt && md5sum data$i >sum$i)
    [ $((i % 4)) -eq 0 ] && sync
    echo "guest: wrote $i"
done
(cd /mnt && cat sum* | md5sum -c >/tmp.log 2>&1) && echo "guest: verified $(grep -c OK /tmp.log)"
echo "guest: last $(cat /mnt/sumFILES)"
umount /mnt && echo "guest: done"
poweroff -f
"#;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    raise_descriptor_limit();
    let numbers: Vec<u8> = std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let [vcpus, branches, children] = numbers[..] else {
        return Err("usage: linux-guest VCPUS BRANCHES CHILDREN".into());
    };
    let directory = tempfile::tempdir_in("/var/tmp")?;
    let init = INIT.replace("FILES", &FILES.to_string());
    let modules = ["virtio_mmio", "virtio_blk", "virtio_rng", "crc32c_generic", "ext4"];
    let setup = Setup::new(directory.path(), &init, &modules, file_system(directory.path())?, vcpus)?;

    let begun = Instant::now();
    let (_process, mut source) = setup.boot("source")?;
    source.wait_for("guest: wrote 1", PATIENCE)?;
    let boot = begun.elapsed();
    let mut guests = Vec::new();
    let mut pauses = Vec::new();
    for branch in 0..branches {
        let (mut zygote, pause) = source.branch(&setup, &format!("source-{branch}"))?;
        pauses.push(pause.as_secs_f64() * 1e3);
        // What the source had written so far, for whoever starts from here.
        let below = source.tops.len() - 1;
        for child in 0..children {
            guests.push((setup.fork(&mut zygote, &format!("child-{branch}-{child}"))?, below));
        }
    }

    let mut last = BTreeSet::new();
    finish(&mut source, &mut last)?;
    check_disk(&setup, &source.tops)?;
    for (guest, below) in &mut guests {
        finish(guest, &mut last)?;
        let mut layers: Vec<File> =
            source.tops[..*below].iter().map(File::try_clone).collect::<Result<_, _>>()?;
        layers.push(guest.tops[0].try_clone()?);
        check_disk(&setup, &layers)?;
    }
    if last.len() != guests.len() + 1 {
        return Err(
            format!("{} guests have written {} different last files", guests.len() + 1, last.len()).into()
        );
    }
    pauses.sort_unstable_by(f64::total_cmp);
    print(&json!({
        "guests": guests.len() + 1,
        "boot_ms": boot.as_secs_f64() * 1e3,
        "pause_max_ms": pauses.last(),
        "distinct": last.len(),
    }))
}

/// Waits for a guest to verify its files and switch itself off; keeps what it wrote last.
fn finish(guest: &mut LinuxVm, last: &mut BTreeSet<String>) -> Result<(), Failure> {
    guest.wait_for("guest: done", PATIENCE)?;
    guest.wait_for_end()?;
    let console = guest.console()?;
    if !console.contains(&format!("guest: verified {FILES}")) {
        return Err(format!("not every file is whole:\n{console}").into());
    }
    if ["BUG", "Oops", "panic", "Call Trace", "EXT4-fs error"].iter().any(|word| console.contains(word)) {
        return Err(format!("the guest's kernel complains:\n{console}").into());
    }
    let line = console.lines().find(|line| line.starts_with("guest: last ")).ok_or("no last file")?;
    last.insert(line.to_owned());
    Ok(())
}

/// Puts the layers of a disk together and checks the file system on it.
fn check_disk(setup: &Setup, layers: &[File]) -> Result<(), Failure> {
    let mut layers: Vec<Layer> =
        layers.iter().map(|file| Ok(Layer::open(file.try_clone()?)?)).collect::<Result<_, Failure>>()?;
    let top = layers.pop().ok_or("no layer")?;
    let stack = LayerStack::new(DISK, Some(setup.base().try_clone()?), layers)?;
    let disk = LayeredDisk::new(stack, top, u64::MAX)?;
    let image = tempfile::NamedTempFile::new_in("/var/tmp")?;
    let mut buffer = vec![0; 1 << 20];
    for offset in (0..DISK).step_by(buffer.len()) {
        disk.read_at(offset, &mut buffer)?;
        image.as_file().write_all_at(&buffer, offset)?;
    }
    let output = Command::new("e2fsck").args(["-f", "-n"]).arg(image.path()).output()?;
    if !output.status.success() {
        return Err(format!("e2fsck: {}", String::from_utf8_lossy(&output.stdout)).into());
    }
    Ok(())
}

/// A file with an empty ext4 file system.
fn file_system(directory: &Path) -> Result<File, Failure> {
    let path = directory.join("base.ext4");
    File::create(&path)?.set_len(DISK)?;
    let output = Command::new("mke2fs").args(["-q", "-t", "ext4", "-F"]).arg(&path).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(File::open(path)?)
}
