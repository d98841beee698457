//! 64-bit mode, entered from outside: the registers of a vCPU as if the guest had switched.

use kvm_bindings::{kvm_segment, kvm_sregs};

/// Page tables of four levels, which 64-bit mode needs.
pub const CR4_PAE: u64 = 1 << 5;
const CR0_PE_ET_NE_WP_PG: u64 = 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;
const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;

/// Flat segments (code at 0x10, data at 0x18, as Linux's boot protocol has them), paging with these tables.
pub fn enter_long_mode(sregs: &mut kvm_sregs, page_tables: u64, cr4: u64) {
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
    sregs.cr3 = page_tables;
    sregs.cr4 = cr4;
    sregs.cr0 = CR0_PE_ET_NE_WP_PG;
    sregs.efer = EFER_LME_LMA;
}
