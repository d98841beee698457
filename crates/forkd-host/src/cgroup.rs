//! Where cgroup v2 is.

use std::fs;
use std::path::PathBuf;

/// Where it is mounted, if it is.
pub fn mount_point() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    find_mount(&mounts).map(|mount| mount.point.into())
}

#[derive(Debug, PartialEq)]
pub(crate) struct Mount<'a> {
    pub point: &'a str,
    pub options: &'a str,
}

/// The cgroup2 mount in /proc/self/mountinfo: `ID PARENT DEV ROOT POINT OPTIONS … - TYPE SOURCE SUPEROPTIONS`.
pub(crate) fn find_mount(mounts: &str) -> Option<Mount<'_>> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        if file_system.next()? != "cgroup2" {
            return None;
        }
        Some(Mount { point: mount.split(' ').nth(4)?, options: file_system.nth(1)? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
22 1 0:20 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
30 22 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 22 0:27 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw
";

    #[test]
    fn the_mount_is_found_among_others() {
        assert_eq!(find_mount(HYBRID), Some(Mount { point: "/sys/fs/cgroup/unified", options: "rw" }));
        assert_eq!(find_mount("22 1 0:20 / / rw - ext4 /dev/vda rw\n"), None);
        assert_eq!(find_mount("garbage\n - \n - cgroup2\n"), None);
    }
}
