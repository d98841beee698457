//! The registers of the first instruction: 64-bit mode, everything mapped onto itself.

use forkd_memory::GuestRam;
use kvm_bindings::{kvm_regs, kvm_segment, kvm_sregs};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress};

use super::BootError;
use super::kernel::{KernelError, ZERO_PAGE};
use crate::vm::hardware::failed;

const GDT: u64 = 0x500;
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xa000;
const PAGE_DIRECTORIES: u64 = 0xb000;

const PRESENT_WRITABLE: u64 = 0b11;
const HUGE: u64 = 1 << 7;
const CR0_PE_ET_NE_WP_PG: u64 = 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;

/// The boot protocol's segments: code at 0x10, data at 0x18.
const GDT_ENTRIES: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];

/// Sets up the first vCPU. The others wait, as KVM makes them, until the first one starts them.
pub fn set(ram: &GuestRam, vcpus: &[VcpuFd], entry: GuestAddress) -> Result<(), BootError> {
    write_tables(ram).map_err(|_| KernelError::Parameters)?;
    let Some(first) = vcpus.first() else { return Ok(()) };
    let mut sregs = first.get_sregs().map_err(failed("KVM_GET_SREGS"))?;
    enter_long_mode(&mut sregs);
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

fn enter_long_mode(sregs: &mut kvm_sregs) {
    let code = kvm_segment {
        base: 0,
        limit: u32::MAX,
        selector: 0x10,
        type_: 0b1011, // execute, read, accessed
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: 0x18, type_: 0b0011, l: 0, db: 1, ..code };
    sregs.cs = code;
    for segment in [&mut sregs.ds, &mut sregs.es, &mut sregs.fs, &mut sregs.gs, &mut sregs.ss] {
        *segment = data;
    }
    sregs.gdt.base = GDT;
    sregs.gdt.limit = 8 * 4 - 1;
    sregs.cr3 = PML4;
    sregs.cr4 = CR4_PAE;
    sregs.cr0 = CR0_PE_ET_NE_WP_PG;
    sregs.efer = EFER_LME_LMA;
}
