//! The registers of the first instruction: 64-bit mode, everything mapped onto itself.

use forkd_memory::GuestRam;
use kvm_bindings::kvm_regs;
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::BootError;
use super::kernel::{KernelError, ZERO_PAGE};
use crate::vm::hardware::failed;
use crate::vm::long_mode::{CR4_PAE, enter_long_mode};

const GDT: u64 = 0x500;
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xa000;
const PAGE_DIRECTORIES: u64 = 0xb000;

const PRESENT_WRITABLE: u64 = 0b11;
const HUGE: u64 = 1 << 7;

/// The boot protocol's segments: code at 0x10, data at 0x18.
const GDT_ENTRIES: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Sets up the first vCPU. The others wait, as KVM makes them, until the first one starts them.
pub fn set(ram: &GuestRam, vcpus: &[VcpuFd], entry: GuestAddress) -> Result<(), BootError> {
    write_tables(ram).map_err(|_| KernelError::Parameters)?;
    let Some(first) = vcpus.first() else { return Ok(()) };
    let mut sregs = first.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    enter_long_mode(&mut sregs, PML4, CR4_PAE);
    (sregs.gdt.base, sregs.gdt.limit) = (GDT, 8 * 4 - 1);
    first.set_sregs(&sregs).map_err(failed("KVM_SET_SREGS"))?;
    let regs = kvm_regs { rip: entry.0, rsi: ZERO_PAGE.0, rflags: 2, ..Default::default() };
    first.set_regs(&regs).map_err(failed("KVM_SET_REGS"))?;
    Ok(())
}

fn write_tables(ram: &GuestRam) -> Result<(), vm_memory::GuestMemoryError> {
    let memory = ram.memory();
    let write = |at: u64, entry: u64| memory.write_obj(entry, GuestAddress(at));
    for (index, entry) in (0..).zip(GDT_ENTRIES) {
        write(GDT + index * 8, entry)?;
    }
    write(PML4, PDPT | PRESENT_WRITABLE)?;
    for gigabyte in 0..4 {
        let directory = PAGE_DIRECTORIES + gigabyte * 4096;
        write(PDPT + gigabyte * 8, directory | PRESENT_WRITABLE)?;
        for page in 0..512 {
            write(directory + page * 8, gigabyte << 30 | page << 21 | PRESENT_WRITABLE | HUGE)?;
        }
    }
    Ok(())
}
