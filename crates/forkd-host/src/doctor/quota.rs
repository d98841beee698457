//! Whether the kernel can limit what each sandbox writes to its disk.

use std::fs;
use std::path::{Path, PathBuf};

use super::Problem;

/// How ext4 and XFS say that they enforce limits of projects.
const OPTION: &str = "prjquota";

pub(super) fn check(home: &Path) -> Result<String, Problem> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // A directory that does not exist yet is made where its parents are.
    let there =
        home.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_else(|| PathBuf::from("/"));
    match enforces(&mounts, &there) {
        true => Ok(format!("the file system of {} enforces project quotas", there.display())),
        false => Err(Problem::warning(
            format!(
                "the file system of {} has no project quotas: VM processes limit disks themselves",
                there.display()
            ),
            "use ext4 with tune2fs -O quota,project -Q prjquota, mounted with prjquota, or XFS mounted with pquota",
        )),
    }
}

/// Whether the file system of a path has the option, by what the kernel says of mounts: the last one whose root is nearest counts.
fn enforces(mounts: &str, path: &Path) -> bool {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        // Paths with spaces are written in octal, and not found: the mount above counts then.
        let root = PathBuf::from(before.split(' ').nth(4)?);
        let options = after.split(' ').nth(2)?.split(',').any(|option| option == OPTION);
        path.starts_with(&root).then(|| (root.components().count(), options))
    };
    mounts.lines().filter_map(mount).max_by_key(|(depth, _)| *depth).is_some_and(|(_, options)| options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_counts() {
        let mounts = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
                      30 27 254:16 / /srv rw shared:1 - xfs /dev/vdb rw,attr2,prjquota\n\
                      31 30 0:25 / /srv/tmp rw - tmpfs tmpfs rw,size=1k\n\
                      32 27 7:0 / /lib rw - ext4 /dev/loop0 rw,usrquota";
        for (path, expected) in
            [("/srv/forkd", true), ("/srv", true), ("/srv/tmp/x", false), ("/srvx", false), ("/lib", false)]
        {
            assert_eq!(enforces(mounts, Path::new(path)), expected, "{path}");
        }
        assert!(!enforces("", Path::new("/")));
    }
}
