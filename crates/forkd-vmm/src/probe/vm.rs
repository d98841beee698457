//! A VM of one vCPU and a few pages, started directly in 64-bit mode.

#![expect(unsafe_code, reason = "KVM_SET_USER_MEMORY_REGION hands the kernel a raw address")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::guest::{self, REPORT_PORT, Step};
use crate::vm::long_mode::{CR4_PAE, enter_long_mode};

const MEMORY_SIZE: usize = 64 << 10;
const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const PAGE_DIRECTORY: u64 = 0x3000;
const CODE: u64 = 0x4000;

const PAGE_PRESENT_WRITABLE: u64 = 0b11;
const PAGE_HUGE: u64 = 1 << 7;
/// For the SSE instruction.
const CR4_OSFXSR_OSXMMEXCPT: u64 = 1 << 9 | 1 << 10;
/// KVM on Intel wants three pages for itself, below 4 GiB and outside of guest memory.
const TSS_ADDRESS: usize = 0xfffb_d000;

/// Making the VM failed: the device is not a KVM that works.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("{call}: {source}")]
    Kvm { call: &'static str, source: kvm_ioctls::Error },
    #[error("the device speaks version {0} of the KVM interface, not 12")]
    ApiVersion(i32),
    #[error("the device's path has a zero byte in it")]
    Path,
    #[error("guest memory: {0}")]
    Memory(String),
}

/// Running it did not end in the report that the guest makes.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("KVM_RUN: {0}")]
    Kvm(kvm_ioctls::Error),
    #[error("KVM_RUN ended with {0}")]
    Exit(String),
    #[error("{0} gave a wrong result")]
    Wrong(Step),
}

/// Opens the KVM device and checks that it is one.
pub fn open(device: &Path) -> Result<Kvm, SetupError> {
    let path = CString::new(device.as_os_str().as_bytes()).map_err(|_| SetupError::Path)?;
    let kvm =
        Kvm::new_with_path(path.as_c_str()).map_err(|source| SetupError::Kvm { call: "open", source })?;
    match kvm.get_api_version() {
        12 => Ok(kvm),
        version => Err(SetupError::ApiVersion(version)),
    }
}

/// The field order is the drop order: the kernel lets go of the memory before it is unmapped.
pub struct TinyVm {
    vcpu: VcpuFd,
    _vm: VmFd,
    _memory: GuestMemoryMmap,
}

impl TinyVm {
    pub fn new(kvm: &Kvm) -> Result<TinyVm, SetupError> {
        let failed = |call| move |source| SetupError::Kvm { call, source };
        let memory = guest_memory().map_err(SetupError::Memory)?;
        let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
        let userspace_addr = memory
            .get_host_address(GuestAddress(0))
            .map_err(|error| SetupError::Memory(error.to_string()))?
            .addr() as u64;
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size: MEMORY_SIZE as u64,
            userspace_addr,
        };
        // SAFETY: the address and size are those of `memory`, a mapping that nothing else refers to and that, by the
        // field order of `TinyVm`, is unmapped only after the VM that uses it is gone.
        unsafe { vm.set_user_memory_region(region) }.map_err(failed("KVM_SET_USER_MEMORY_REGION"))?;
        vm.set_tss_address(TSS_ADDRESS).map_err(failed("KVM_SET_TSS_ADDR"))?;
        let vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
        let cpuid =
            kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES).map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
        vcpu.set_cpuid2(&cpuid).map_err(failed("KVM_SET_CPUID2"))?;
        let mut sregs = vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
        enter_long_mode(&mut sregs, PML4, CR4_PAE | CR4_OSFXSR_OSXMMEXCPT);
        vcpu.set_sregs(&sregs).map_err(failed("KVM_SET_SREGS"))?;
        let mut regs = vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?;
        regs.rip = CODE;
        regs.rflags = 2;
        vcpu.set_regs(&regs).map_err(failed("KVM_SET_REGS"))?;
        Ok(TinyVm { vcpu, _vm: vm, _memory: memory })
    }

    /// Runs guest code to its next report.
    pub fn run(&mut self) -> Result<Step, RunError> {
        match self.vcpu.run().map_err(RunError::Kvm)? {
            VcpuExit::IoOut(REPORT_PORT, &[byte]) => match Step::decode(byte) {
                Some((step, true)) => Ok(step),
                Some((step, false)) => Err(RunError::Wrong(step)),
                None => Err(RunError::Exit(format!("report {byte:#x}"))),
            },
            exit => Err(RunError::Exit(format!("{exit:?}"))),
        }
    }
}

/// The guest's memory: its code, and page tables that map the first 2 MiB onto themselves with one huge page. (Not a
/// page of 1 GiB: KVM with shadow paging refuses those.)
fn guest_memory() -> Result<GuestMemoryMmap, String> {
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), MEMORY_SIZE)])
        .map_err(|error| error.to_string())?;
    let write_entry =
        |at, entry: u64| memory.write_obj(entry, GuestAddress(at)).map_err(|error| error.to_string());
    write_entry(PML4, PDPT | PAGE_PRESENT_WRITABLE)?;
    write_entry(PDPT, PAGE_DIRECTORY | PAGE_PRESENT_WRITABLE)?;
    write_entry(PAGE_DIRECTORY, PAGE_PRESENT_WRITABLE | PAGE_HUGE)?;
    memory.write_slice(guest::code(), GuestAddress(CODE)).map_err(|error| error.to_string())?;
    Ok(memory)
}
