//! cgroups of processes that write snapshots: at lower priority than guests.
//!
//! A cgroup's share of the CPUs is what counts between sandboxes; the nice value of a process counts within its cgroup only. So a
//! process that writes a snapshot has a cgroup of its own, with a small share, and a larger one when a request waits for the snapshot. Not
//! the smallest possible one, nor `cpu.idle`: the writer is a clone of a VM process, and the kernel has locks that both take. The holder of
//! one must get to release it, on a host that is never idle, too.

use std::os::fd::OwnedFd;

use crate::blocking::in_place;
use crate::limits::cgroup::{CgroupError, Cgroups, Quota, set};
use crate::limits::quota::WEIGHT;

/// Before the tag of the snapshot that is written.
pub(crate) const WRITER: &str = "writer-";
/// A fifth of a sandbox's.
const LOW_WEIGHT: u16 = WEIGHT / 5;

impl Cgroups {
    /// Makes the cgroup of a process that stands back, with the other limits of this quota.
    pub(crate) fn make_standing_back(&self, name: &str, quota: &Quota) -> Result<OwnedFd, CgroupError> {
        in_place(|| {
            let path = self.path(name);
            let made = self.make(name, &Quota { cpu_weight: LOW_WEIGHT, ..*quota })?;
            // What is written later, by threads of the kernel's, counts too. Not every kernel is built with it.
            let _ = set(&path.join("io.prio.class"), "idle");
            Ok(made)
        })
    }

    /// Gives such a cgroup this share, and its turn at the disk. Where it cannot be set, the writing only takes longer.
    pub(crate) fn hasten(&self, name: &str, weight: u16) {
        in_place(|| {
            let path = self.path(name);
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
        leaf(tree.path(), "writer-a", &[&FILES[..], &["io.prio.class"]].concat());
        let read = |file: &str| fs::read_to_string(tree.path().join("forkd/writer-a").join(file)).unwrap();
        let state = || ["cpu.weight", "io.prio.class"].map(read);
        for _ in 0..2 {
            cgroups.make_standing_back("writer-a", &QUOTA).unwrap();
            assert_eq!(state(), ["20", "idle"]);
        }
        assert_eq!(read("memory.max"), "67108864");
        cgroups.hasten("writer-a", 10);
        assert_eq!(state(), ["10", "no-change"]);
    }

    #[test]
    fn a_kernel_without_classes_for_disks_knows_weights_only() {
        let tree = tree("cpu io memory pids");
        let cgroups = Cgroups::prepare(&tree.path().join("forkd"), tree.path()).unwrap();
        leaf(tree.path(), "writer-b", &FILES);
        cgroups.make_standing_back("writer-b", &QUOTA).unwrap();
        let weight = || fs::read_to_string(tree.path().join("forkd/writer-b/cpu.weight")).unwrap();
        assert_eq!(weight(), "20");
        cgroups.hasten("writer-b", 100);
        assert_eq!(weight(), "100");
        assert!(!tree.path().join("forkd/writer-b/io.prio.class").exists());
        // A removed one is unused.
        cgroups.hasten("writer-none", 100);
    }
}
