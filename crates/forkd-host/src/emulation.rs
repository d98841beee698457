//! Whether this host's own CPU is QEMU's emulator, as in the machine.

use std::arch::x86_64::__cpuid;

/// Where hypervisors say who they are.
const SIGNATURE: u32 = 0x4000_0000;
const TCG: &[u8; 12] = b"TCGTCGTCGTCG";

/// Whether guests of this host's KVM run on emulated SVM.
pub fn is_emulated() -> bool {
    let leaf = __cpuid(SIGNATURE);
    let signature = [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes);
    signature.as_flattened() == TCG
}
