//! KVM's part of a VM: made over guest memory that is there already, in the one order that is fast and works.

#![expect(unsafe_code, reason = "KVM_SET_USER_MEMORY_REGION hands the kernel a raw address")]

use std::ffi::CStr;
use std::sync::Arc;

use forkd_memory::GuestRam;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::{Kvm, VcpuFd, VmFd};

/// KVM on Intel wants three pages for itself, below 4 GiB and outside of guest memory.
const TSS_ADDRESS: usize = 0xfffb_d000;
const DEVICE: &CStr = c"/dev/kvm";

/// A call to KVM failed. Every such failure ends the VM: one that runs with half of its state hangs in silence.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{call}: {source}")]
pub struct KvmError {
    pub call: &'static str,
    pub source: kvm_ioctls::Error,
}

/// Names the call that failed.
pub fn failed(call: &'static str) -> impl Fn(kvm_ioctls::Error) -> KvmError {
    move |source| KvmError { call, source }
}

/// A KVM VM with its vCPUs, none of which has run.
pub struct Hardware {
    pub vcpus: Vec<VcpuFd>,
    pub vm: VmFd,
    pub kvm: Arc<Kvm>,
}

/// Opens KVM. A process does this once, before its jail has no paths; those that are forked from it inherit it.
pub fn open() -> Result<Arc<Kvm>, KvmError> {
    Kvm::new_with_path(DEVICE).map(Arc::new).map_err(failed("opening /dev/kvm"))
}

impl Hardware {
    /// VM, memory, TSS address, interrupt controllers, vCPUs. Memory after the interrupt controllers would wait for an RCU
    /// grace period: 7 ms a VM.
    pub fn new(kvm: &Arc<Kvm>, ram: &GuestRam, vcpus: u8) -> Result<Hardware, KvmError> {
        forkd_proto::passes!();
        let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
        for (slot, region) in (0..).zip(ram.regions()) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: region.guest.0,
                memory_size: region.len,
                userspace_addr: region.host,
            };
            // SAFETY: guest RAM stays mapped at its address as long as the process lives, and only guests and `vm_memory`
            // touch it.
            unsafe { vm.set_user_memory_region(region) }.map_err(failed("KVM_SET_USER_MEMORY_REGION"))?;
        }
        vm.set_tss_address(TSS_ADDRESS).map_err(failed("KVM_SET_TSS_ADDR"))?;
        vm.create_irq_chip().map_err(failed("KVM_CREATE_IRQCHIP"))?;
        let vcpus = (0..u64::from(vcpus)).map(|id| vm.create_vcpu(id).map_err(failed("KVM_CREATE_VCPU")));
        Ok(Hardware { vcpus: vcpus.collect::<Result<_, _>>()?, vm, kvm: Arc::clone(kvm) })
    }
}
