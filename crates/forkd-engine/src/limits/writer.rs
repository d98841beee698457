//! cgroups of processes that write snapshots: they stand back behind guests.
//!
//! A cgroup's share of the CPUs is what counts between sandboxes; the nice value of a process counts within its cgroup only. So a
//! process that writes a snapshot has a cgroup of its own. It gets what nobody else wants, which is not nothing (three parts in a
//! thousand of a CPU that another cgroup never leaves), and more of it when somebody waits for the snapshot.

use std::os::fd::OwnedFd;

use crate::blocking::in_place;
use crate::limits::cgroup::{CgroupError, Cgroups, Quota, set};

/// Before the tag of the snapshot that is written.
pub(crate) const WRITER: &str = "writer-";
/// Where the kernel cannot let a cgroup stand back altogether, it has the smallest share.
const LEAST_WEIGHT: u16 = 1;

impl Cgroups {
    /// Makes the cgroup of a process that stands back, with the other limits of this quota.
    pub(crate) fn make_standing_back(&self, name: &str, quota: &Quota) -> Result<OwnedFd, CgroupError> {
        in_place(|| {
            let path = self.path(name);
            // One that is there has no weight that could be set. A new one is as it should be.
            let _ = set(&path.join("cpu.idle"), "0");
            let made = self.make(name, &Quota { cpu_weight: LEAST_WEIGHT, ..*quota })?;
            // Linux 5.15.
            let _ = set(&path.join("cpu.idle"), "1");
            // What is written later, by threads of the kernel's, counts too. Not every kernel is built with it.
            let _ = set(&path.join("io.prio.class"), "idle");
            Ok(made)
        })
    }

    /// Gives such a cgroup this share, and its turn at the disk. Where it cannot be set, the writing only takes longer.
    pub(crate) fn hasten(&self, name: &str, weight: u16) {
        in_place(|| {
            let path = self.path(name);
            let _ = set(&path.join("cpu.idle"), "0");
            let _ = set(&path.join("cpu.weight"), &weight.to_string());
            let _ = set(&path.join("io.prio.class"), "no-change");
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::cgroup::testing::{FILES, QUOTA, leaf, tree};

    use std::fs;

    #[test]
    fn a_writer_stands_back_until_it_is_hastened() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        leaf(tree.path(), "writer-a", &[&FILES[..], &["cpu.idle", "io.prio.class"]].concat());
        let read = |file: &str| fs::read_to_string(tree.path().join("forkd/writer-a").join(file)).unwrap();
        let state = || ["cpu.idle", "cpu.weight", "io.prio.class"].map(read);
        for _ in 0..2 {
            cgroups.make_standing_back("writer-a", &QUOTA).unwrap();
            assert_eq!(state(), ["1", "1", "idle"]);
        }
        assert_eq!(read("memory.max"), "67108864");
        cgroups.hasten("writer-a", 10);
        assert_eq!(state(), ["0", "10", "no-change"]);
    }

    #[test]
    fn an_older_kernel_knows_weights_only() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        leaf(tree.path(), "writer-b", &FILES);
        cgroups.make_standing_back("writer-b", &QUOTA).unwrap();
        let weight = || fs::read_to_string(tree.path().join("forkd/writer-b/cpu.weight")).unwrap();
        assert_eq!(weight(), "1");
        cgroups.hasten("writer-b", 100);
        assert_eq!(weight(), "100");
        assert!(!tree.path().join("forkd/writer-b/cpu.idle").exists());
        // One that is gone is nobody's.
        cgroups.hasten("writer-none", 100);
    }
}
