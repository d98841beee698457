//! Another world: namespaces of its own, and an empty root.
//!
//! ```text
//!   /          a tmpfs of this mount namespace alone, read-only
//!   └── jail   empty; the root of the process
//! ```
//!
//! The root of the process is not that of its mount namespace on purpose: the kernel refuses to create a user namespace
//! there, and no filter could see the flag in a `clone3`.

#![expect(unsafe_code, reason = "leaving a namespace is unsafe for other threads")]

use std::fs;

use rustix::fs::{Mode, mkdir};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, mount_remount, unmount,
};
use rustix::process::{chdir, chroot, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::rights::Standing;
use crate::{JailError, failed};

/// A directory that is there on every host. Only this process sees what is put over it.
const PLACE: &str = "/proc";
const ROOT: &str = "/jail";
/// Two inodes are all that is in there.
const SIZE: &std::ffi::CStr = c"size=4k,nr_inodes=3,mode=555";

pub fn leave(standing: &Standing) -> Result<(), JailError> {
    let mut flags = UnshareFlags::NEWNS | UnshareFlags::NEWIPC | UnshareFlags::NEWUTS | UnshareFlags::NEWNET;
    if let Standing::Unprivileged { .. } = standing {
        flags |= UnshareFlags::NEWUSER;
    }
    // SAFETY: the process has one thread, and none of these flags is about its descriptors.
    unsafe { unshare_unsafe(flags) }.map_err(|errno| JailError {
        step: match standing {
            Standing::Unprivileged { .. } => {
                "namespaces; either root starts it, or user namespaces are allowed"
            }
            Standing::Root { .. } => "namespaces",
        },
        source: errno.into(),
    })?;
    if let Standing::Unprivileged { uid, gid } = standing {
        keep_ids(*uid, *gid)?;
    }
    empty_root().map_err(failed("an empty root"))
}

/// In a user namespace, its creator has the ids that it has outside, and there are no others.
fn keep_ids(uid: u32, gid: u32) -> Result<(), JailError> {
    let write = |name: &str, text: String| {
        fs::write(format!("/proc/self/{name}"), text).map_err(failed("the ids of a user namespace"))
    };
    write("setgroups", "deny".into())?;
    write("uid_map", format!("{uid} {uid} 1"))?;
    write("gid_map", format!("{gid} {gid} 1"))
}

fn empty_root() -> Result<(), Errno> {
    // Later mounts are not visible to other processes.
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("none", PLACE, "tmpfs", flags, SIZE)?;
    chdir(PLACE)?;
    // With both the same, the old root lies over the new one, until it is taken off.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")?;
    mkdir(ROOT, Mode::from_raw_mode(0o555))?;
    mount_remount("/", flags | MountFlags::RDONLY, c"")?;
    chroot(ROOT)?;
    chdir("/")
}
