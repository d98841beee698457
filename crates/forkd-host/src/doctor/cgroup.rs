//! cgroup v2 with the controllers that limit a sandbox.

use std::fs;
use std::path::Path;

use super::Problem;

const NEEDED: [&str; 4] = ["memory", "cpu", "io", "pids"];
const UNIFIED: &str = "boot with cgroup v2 only (kernel argument systemd.unified_cgroup_hierarchy=1)";

pub(super) fn check() -> Result<String, Problem> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Problem::failed(format!("cannot read the mount table: {error}"), "mount /proc"))?;
    let mount =
        find_mount(&mounts).ok_or_else(|| Problem::failed("no cgroup2 file system is mounted", UNIFIED))?;
    let controllers =
        fs::read_to_string(Path::new(mount.point).join("cgroup.controllers")).unwrap_or_default();
    judge(&mount, &controllers)
}

#[derive(Debug, PartialEq)]
struct Mount<'a> {
    point: &'a str,
    options: &'a str,
}

/// The cgroup2 mount in /proc/self/mountinfo: `ID PARENT DEV ROOT POINT OPTIONS … - TYPE SOURCE SUPEROPTIONS`.
fn find_mount(mounts: &str) -> Option<Mount<'_>> {
    mounts.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let mut file_system = file_system.split(' ');
        if file_system.next()? != "cgroup2" {
            return None;
        }
        Some(Mount { point: mount.split(' ').nth(4)?, options: file_system.nth(1)? })
    })
}

fn judge(mount: &Mount<'_>, controllers: &str) -> Result<String, Problem> {
    let present: Vec<&str> = controllers.split_whitespace().collect();
    let missing: Vec<&str> = NEEDED.into_iter().filter(|name| !present.contains(name)).collect();
    if !missing.is_empty() {
        return Err(Problem::failed(
            format!("{} lacks the controllers {}", mount.point, missing.join(", ")),
            UNIFIED,
        ));
    }
    if !mount.options.split(',').any(|option| option == "favordynmods") {
        return Err(Problem::warning(
            format!("{} has all controllers, but every new VM waits 9 to 35 ms for RCU there", mount.point),
            format!("mount -o remount,favordynmods {} (Linux 6.0 or later)", mount.point),
        ));
    }
    Ok(format!("{} has {}, and favordynmods", mount.point, NEEDED.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
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

    #[test]
    fn missing_controllers_fail_by_name() {
        let mount = Mount { point: "/cg", options: "rw" };
        let problem = judge(&mount, "cpu pids cpuset").unwrap_err();
        assert_eq!(problem.status, Status::Failed);
        assert_eq!(problem.detail, "/cg lacks the controllers memory, io");
    }

    #[test]
    fn a_slow_mount_is_a_warning() {
        let all = "cpuset cpu io memory pids";
        let slow = Mount { point: "/cg", options: "rw,nsdelegate" };
        assert_eq!(judge(&slow, all).unwrap_err().status, Status::Warning);
        assert!(judge(&Mount { options: "rw,favordynmods", ..slow }, all).is_ok());
    }
}
