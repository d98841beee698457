//! A guest's disk from the host's side: made before the guest starts, checked when it has ended.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use forkd_devices::disk::{Layer, LayerStack, LayeredDisk};

use crate::engine::process::Failure;

const BYTES: u64 = 32 << 20;

/// A file with an empty ext4 file system.
pub(super) fn file_system(directory: &Path) -> Result<File, Failure> {
    let path = directory.join("base.ext4");
    File::create(&path)?.set_len(BYTES)?;
    let output = Command::new("mke2fs").args(["-q", "-t", "ext4", "-F"]).arg(&path).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    Ok(File::open(path)?)
}

/// Puts the layers of a disk together and checks the file system on it.
pub(super) fn check(base: &File, layers: &[File]) -> Result<(), Failure> {
    let mut layers: Vec<Layer> =
        layers.iter().map(|file| Ok(Layer::open(file.try_clone()?)?)).collect::<Result<_, Failure>>()?;
    let top = layers.pop().ok_or("no layer")?;
    let stack = LayerStack::new(BYTES, Some(base.try_clone()?), layers)?;
    let disk = LayeredDisk::new(stack, top, u64::MAX)?;
    let image = tempfile::NamedTempFile::new_in("/var/tmp")?;
    image.as_file().set_len(BYTES)?;
    let zeroes = vec![0; 1 << 16];
    let mut buffer = zeroes.clone();
    for offset in (0..BYTES).step_by(buffer.len()) {
        disk.read_at(offset, &mut buffer)?;
        if buffer != zeroes {
            image.as_file().write_all_at(&buffer, offset)?;
        }
    }
    let output = Command::new("e2fsck").args(["-f", "-n"]).arg(image.path()).output()?;
    if !output.status.success() {
        return Err(format!("e2fsck: {}", String::from_utf8_lossy(&output.stdout)).into());
    }
    Ok(())
}
