//! cgroup v2 with the controllers that limit a sandbox.

use std::fs;
use std::path::Path;

use super::Problem;
use crate::cgroup::{Mount, find_mount};

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
