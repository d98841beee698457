//! The filesystems that Linux programs expect.

use std::ffi::CString;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mount {
    kind: &'static str,
    pub target: &'static str,
    flags: MountFlags,
    /// Tried in this order: a kernel refuses options that it does not know.
    options: &'static [&'static str],
    /// A kernel may be built without it, and the guest still be of use.
    optional: bool,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot mount {kind} at {target}: {source}")]
pub struct MountError {
    kind: &'static str,
    target: &'static str,
    source: io::Error,
}

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
const NO_DEVICES: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

const fn kernel(
    kind: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: &'static [&'static str],
) -> Mount {
    Mount { kind, target, flags, options, optional: false }
}

/// Needed to find the root disk; they move along when the root changes.
pub const EARLY: [Mount; 3] = [
    kernel("proc", "/proc", QUIET, &[""]),
    kernel("sysfs", "/sys", QUIET, &[""]),
    kernel("devtmpfs", "/dev", MountFlags::NOSUID, &["mode=755"]),
];

/// On the root disk.
pub const LATE: [Mount; 5] = [
    kernel(
        "devpts",
        "/dev/pts",
        MountFlags::NOSUID.union(MountFlags::NOEXEC),
        &["gid=5,mode=620,ptmxmode=666"],
    ),
    kernel("tmpfs", "/dev/shm", NO_DEVICES, &["mode=1777"]),
    kernel("tmpfs", "/run", NO_DEVICES, &["mode=755"]),
    Mount {
        kind: "cgroup2",
        target: "/sys/fs/cgroup",
        flags: QUIET,
        // Every program that starts enters a cgroup. Without favordynmods (Linux 6.0) that waits for RCU, some 10 ms.
        options: &["nsdelegate,favordynmods", "nsdelegate"],
        optional: true,
    },
    Mount { kind: "mqueue", target: "/dev/mqueue", flags: QUIET, options: &[""], optional: true },
];

/// Names that programs use and that devtmpfs does not have.
const LINKS: [(&str, &str); 4] = [
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
];

pub fn mount_all(mounts: &[Mount]) -> Result<(), MountError> {
    for entry in mounts {
        match mount_one(entry) {
            Err(error) if !entry.optional => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn mount_one(entry: &Mount) -> Result<(), MountError> {
    let fail = |source| MountError { kind: entry.kind, target: entry.target, source };
    std::fs::create_dir_all(entry.target).map_err(fail)?;
    let mut refused = Errno::INVAL;
    for options in entry.options {
        let options = CString::new(*options).map_err(|error| fail(error.into()))?;
        match mount(entry.kind, entry.target, entry.kind, entry.flags, options.as_c_str()) {
            // Some kernels mount devtmpfs at boot.
            Ok(()) | Err(Errno::BUSY) => return Ok(()),
            Err(error) => refused = error,
        }
    }
    Err(fail(refused.into()))
}

/// What is not worth failing for: links in /dev, and a /tmp that everybody may write to.
pub fn finish() {
    for (name, target) in LINKS {
        let _ = symlink(target, name);
    }
    let temporary = Path::new("/tmp");
    if std::fs::create_dir(temporary).is_ok() {
        let _ = std::fs::set_permissions(temporary, std::fs::Permissions::from_mode(0o1777));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_comes_after_the_one_it_is_in() {
        let order: Vec<&str> = EARLY.iter().chain(&LATE).map(|entry| entry.target).collect();
        for (at, target) in order.iter().enumerate() {
            let inside = |other: &&&str| Path::new(target).starts_with(other) && *other != target;
            assert_eq!(order[at..].iter().find(inside), None, "{target}");
        }
    }
}
