//! `/forkd/grow`: the root's file system takes all of its disk.
//!
//! The guest does it itself, while it is mounted: its programs may not have a tool for it, and the host does not write into what
//! a guest has written. One that has all of the disk already stays as it is.
#![expect(unsafe_code, reason = "ext4's request to grow is an ioctl, which rustix leaves to its caller")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use rustix::fs::{major, minor};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

use crate::envd::RestError;
use crate::runtime::blocking;

/// `EXT4_IOC_RESIZE_FS`: the new number of blocks.
const RESIZE: Opcode = opcode::write::<u64>(b'f', 16);
const _: () = assert!(RESIZE == 0x4008_6610);
/// What the kernel counts disks in, whatever their sectors are.
const SECTOR: u64 = 512;

pub async fn grow() -> Response {
    let grown = tokio::spawn(blocking(|| grow_to_disk(Path::new("/")))).await;
    let failed = |error: &dyn std::error::Error| {
        RestError::bad_request(format!("the file system cannot grow: {error}")).into_response()
    };
    match grown {
        Err(error) => failed(&error),
        Ok(Err(error)) => failed(&error),
        Ok(Ok(Err(error))) => failed(&error),
        Ok(Ok(Ok(()))) => StatusCode::NO_CONTENT.into_response(),
    }
}

fn grow_to_disk(mount: &Path) -> io::Result<()> {
    let root = File::open(mount)?;
    let device = root.metadata()?.dev();
    let size = fs::read_to_string(format!("/sys/dev/block/{}:{}/size", major(device), minor(device)))?;
    let sectors: u64 = size.trim().parse().map_err(io::Error::other)?;
    let block = u64::try_from(rustix::fs::fstatfs(&root)?.f_bsize).map_err(io::Error::other)?;
    let blocks = sectors.saturating_mul(SECTOR) / block.max(1);
    // SAFETY: the kernel reads one number of 64 bits, which is what the request is given.
    let request = unsafe { Setter::<RESIZE, u64>::new(blocks) };
    // SAFETY: the request reads its argument and changes no memory of this process.
    unsafe { ioctl(&root, request)? };
    Ok(())
}

#[cfg(test)]
mod tests {
    use forkd_envd::Exit;

    use super::*;

    fn run(program: &str, arguments: &[&str]) -> bool {
        crate::testing::run(program, arguments).0 == Exit::Code(0)
    }

    /// Needs a loop device and the right to grow file systems, which root does not have in every container; without them there
    /// is nothing to see here.
    #[test]
    fn a_file_system_takes_all_of_its_disk() {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let mount = directory.path().join("mount");
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        fs::create_dir(&mount).unwrap();
        let (file, place) = (image.to_str().unwrap(), mount.to_str().unwrap());
        let made = run("/usr/sbin/mke2fs", &["-q", "-F", "-t", "ext4", "-b", "4096", file, "64M"]);
        if !made || !run("mount", &["-o", "loop", file, place]) {
            return;
        }
        let blocks = || rustix::fs::statvfs(&mount).unwrap().f_blocks;
        let before = blocks();
        let grown = grow_to_disk(&mount).and_then(|()| grow_to_disk(&mount));
        let after = blocks();
        assert!(run("umount", &[place]));
        match grown {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return,
            grown => grown.unwrap(),
        }
        assert!(before < 20_000 && after > 50_000, "{before} {after}");
        assert!(run("/usr/sbin/e2fsck", &["-f", "-n", file]));
    }
}
