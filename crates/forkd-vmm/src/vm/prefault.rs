//! Pages that a VM uses first, made ready before it runs.
//!
//! ```text
//!   zygote is told ──▶ fork ──▶ copy: the written pages become the child's own ──▶ KVM VM, vCPU state ──▶ map ──▶ run
//! ```
//!
//! The fork of a branch takes all of that away again from the VM that is branched: its pages are shared with the branch, and KVM maps
//! none of them. It is done once more, while the VM runs and as soon as no request waits for its process.
//!
//! Whatever the list says, a child is right: a page that is not in it faults when the guest gets there, and one that is in it in vain
//! is an unused copy. So nothing here fails.

#![expect(unsafe_code, reason = "kvm-ioctls has no KVM_PRE_FAULT_MEMORY")]

use std::ops::Range;
use std::os::raw::c_ulong;

use forkd_memory::GuestRam;
use forkd_proto::control;
use forkd_proto::page_runs::PageRuns;
use kvm_bindings::{KVM_CAP_PRE_FAULT_MEMORY, kvm_pre_fault_memory};
use kvm_ioctls::{Kvm, VcpuFd};
use vmm_sys_util::ioctl::ioctl_with_mut_ref;

use crate::snapshot::pages::union;

/// _IOWR(KVMIO, 0xd5, struct kvm_pre_fault_memory), of Linux 6.11.
const KVM_PRE_FAULT_MEMORY: c_ulong = 0xc040_aed5;
const _: () = assert!(
    KVM_PRE_FAULT_MEMORY
        == (3 << 30 | (size_of::<kvm_pre_fault_memory>() as c_ulong) << 16 | 0xae << 8 | 0xd5)
);

/// What a zygote's children make ready.
#[derive(Debug, Default)]
pub struct Prefault {
    written: PageRuns,
    /// What KVM maps before the guest runs, where it can.
    mapped: Vec<Range<u64>>,
}

/// A list that is of another memory.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("pages up to {found} of a memory of {expected} pages")]
pub struct OutsideOfMemory {
    found: u64,
    expected: u64,
}

impl Prefault {
    /// Of a list that anybody may have written. What is done once for all children is done here: KVM is asked what it can, and memory
    /// is made that no child is to make for itself.
    pub fn new(
        kvm: Option<&Kvm>,
        ram: &GuestRam,
        pages: control::Prefault,
    ) -> Result<Prefault, OutsideOfMemory> {
        let lists = [&pages.written, &pages.touched, &pages.fresh];
        let (found, expected) = (lists.map(PageRuns::end).into_iter().max().unwrap_or(0), ram.pages());
        if found > expected {
            return Err(OutsideOfMemory { found, expected });
        }
        for run in pages.fresh.runs() {
            if ram.copy_ahead(run).is_err() {
                break;
            }
        }
        let can_map = kvm.is_some_and(|kvm| kvm.check_extension_raw(KVM_CAP_PRE_FAULT_MEMORY.into()) > 0);
        let mapped = match can_map {
            true => union(pages.written.runs(), pages.touched.runs()).collect(),
            false => Vec::new(),
        };
        Ok(Prefault { written: pages.written, mapped })
    }

    /// Whether nothing is known, or nothing can be done.
    pub fn is_empty(&self) -> bool {
        self.written.is_empty() && self.mapped.is_empty()
    }

    /// Whether KVM is asked to map anything.
    pub fn maps(&self) -> bool {
        !self.mapped.is_empty()
    }

    /// Copies the pages that will be written, before KVM knows of the memory. A kernel that cannot (before Linux 5.14), or that has
    /// no memory left for it, leaves them to the guest's first writes.
    pub fn copy(&self, ram: &GuestRam) {
        for run in self.written.runs() {
            if ram.copy_ahead(run).is_err() {
                return;
            }
        }
    }

    /// Has KVM map the pages as for a read. What was copied is the process' own, and is mapped for writing with that. The tables are
    /// those of all vCPUs, so it is enough to ask one.
    pub fn map(&self, ram: &GuestRam, vcpu: &VcpuFd) {
        for run in &self.mapped {
            for piece in ram.pieces(run.clone()) {
                if !map_range(vcpu, piece.guest.0, piece.len) {
                    return;
                }
            }
        }
    }
}

/// Maps a range of guest memory. Returns whether all of it is.
fn map_range(vcpu: &VcpuFd, gpa: u64, size: u64) -> bool {
    let mut range = kvm_pre_fault_memory { gpa, size, ..Default::default() };
    while range.size > 0 {
        let left = range.size;
        // SAFETY: the kernel reads and writes a `kvm_pre_fault_memory`, whose size the compiler has compared with the number of the
        // call. It maps memory that the guest has already, and changes none.
        let result = unsafe { ioctl_with_mut_ref(vcpu, KVM_PRE_FAULT_MEMORY, &mut range) };
        // It may stop on the way, and says then how far it has come.
        if result != 0 || range.size >= left {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use forkd_memory::Layout;

    #[test]
    fn pages_outside_of_the_memory_are_refused() {
        let ram = GuestRam::allocate(Layout::new(4 << 20).unwrap()).unwrap();
        let list = |run| PageRuns::first_of([run]);
        let new = |written, touched| {
            Prefault::new(None, &ram, control::Prefault { written, touched, ..control::Prefault::default() })
        };
        assert!(new(list(0..1024), list(1023..1024)).is_ok());
        let refused = OutsideOfMemory { found: 1025, expected: 1024 };
        assert_eq!(new(list(0..1), list(3..1025)).unwrap_err(), refused);
        assert_eq!(new(list(1024..1025), PageRuns::default()).unwrap_err(), refused);
        let fresh = control::Prefault { fresh: list(0..1025), ..control::Prefault::default() };
        assert_eq!(Prefault::new(None, &ram, fresh).unwrap_err(), refused);
    }
}
