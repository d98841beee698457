//! The first instruction of a guest: kernel, tables and registers as Linux's 64-bit boot protocol wants them.
//!
//! ```text
//! 0x500     GDT
//! 0x6000    the mailbox (tests only)
//! 0x7000    boot parameters ("zero page")
//! 0x9000    page tables: 4 GiB mapped onto themselves in pages of 2 MiB
//! 0x20000   command line
//! 0x9fc00   end of low memory
//! 0xd0000   the generation id
//! 0xe0000   ACPI tables
//! 0xffff0   the reset vector
//! 0x100000  the kernel, where its ELF headers say
//! …         the initial RAM disk, at the end of the memory below 3 GiB
//! ```

pub mod acpi;
mod cpuid;
mod kernel;
mod registers;
mod reset_vector;

use std::fs::File;
use std::sync::Arc;

use forkd_memory::{GuestRam, Layout, LayoutError, RamError};
use forkd_proto::control::{Boot, CpuModel, Descriptor};
use kvm_ioctls::Kvm;

use crate::vm::devices::{self, Descriptors, DeviceError, Devices};
use crate::vm::hardware::{Hardware, KvmError};
use crate::vm::live::{LiveVm, VmError};

/// The most vCPUs of a VM.
pub const MAX_VCPUS: u8 = 32;

#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error("a VM has 1 to {MAX_VCPUS} vCPUs, not {0}")]
    Vcpus(u8),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Ram(#[from] RamError),
    #[error(transparent)]
    Kernel(#[from] kernel::KernelError),
    #[error(transparent)]
    Kvm(#[from] KvmError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Acpi(#[from] acpi::AcpiError),
    #[error("cannot write the reset vector: {0}")]
    ResetVector(vm_memory::GuestMemoryError),
    #[error("this host's CPU or its KVM lacks features of {0}")]
    CpuModel(CpuModel),
    #[error("more CPUID leaves than KVM can have")]
    Cpuid,
    #[error(transparent)]
    Vm(#[from] VmError),
}

/// Makes a VM that will begin with the first instruction of its kernel. It is paused.
pub fn boot(kvm: &Arc<Kvm>, request: &Boot, descriptors: &mut Descriptors) -> Result<LiveVm, BootError> {
    if !(1..=MAX_VCPUS).contains(&request.vcpus) {
        return Err(BootError::Vcpus(request.vcpus));
    }
    let ram = GuestRam::allocate(Layout::new(request.memory_bytes)?)?;
    let kernel = File::from(descriptors.take(Descriptor::Kernel)?);
    let initramfs = match request.initramfs {
        true => Some(File::from(descriptors.take(Descriptor::Initramfs)?)),
        false => None,
    };
    let hardware = Hardware::new(kvm, &ram, request.vcpus)?;
    let devices = Devices::new(&request.devices, &hardware.vm, &ram, descriptors)?;
    let place = |place: devices::Place| {
        let devices::Place { address, len, gsi } = place;
        acpi::VirtioMmio { address, len, gsi }
    };
    let virtio: Vec<_> = devices.virtio().map(place).collect();
    let acpi = acpi::Acpi { vcpus: request.vcpus, virtio: &virtio, generation_id: devices::GENERATION_ID };
    let rsdp = acpi::write(ram.memory(), &acpi)?;
    reset_vector::write(ram.memory()).map_err(BootError::ResetVector)?;
    let entry = kernel::load(&ram, kernel, initramfs, &request.command_line, rsdp)?;
    cpuid::set(&hardware, request.cpu)?;
    registers::set(&ram, &hardware.vcpus, entry)?;
    Ok(LiveVm::new(ram, hardware, request.devices.clone(), devices)?)
}
