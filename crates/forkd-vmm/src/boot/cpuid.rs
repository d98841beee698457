//! What the guest is told about its CPUs: what its model has of all that KVM supports, with each vCPU's own number in it.

use forkd_proto::control::CpuModel;
use kvm_bindings::{CpuId, KVM_MAX_CPUID_ENTRIES};

use super::BootError;
use crate::vm::cpu;
use crate::vm::hardware::{Hardware, failed};

const FEATURES: u32 = 1;
const TOPOLOGY: u32 = 0xb;
const TOPOLOGY_V2: u32 = 0x1f;
/// In leaf 1, ECX. Without a timer that is programmed in TSC ticks, a guest without a PIT has none.
const TSC_DEADLINE: u32 = 1 << 24;
const HYPERVISOR: u32 = 1 << 31;

pub fn set(hardware: &Hardware, model: CpuModel) -> Result<(), BootError> {
    let supported = hardware.kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
    let supported = supported.map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
    if !cpu::has(supported.as_slice(), model) {
        return Err(BootError::CpuModel(model));
    }
    let mut shown = supported.as_slice().to_vec();
    cpu::mask(&mut shown, model);
    for (number, vcpu) in (0u32..).zip(&hardware.vcpus) {
        let mut entries = shown.clone();
        for entry in &mut entries {
            match entry.function {
                FEATURES => {
                    entry.ecx |= TSC_DEADLINE | HYPERVISOR;
                    entry.ebx = entry.ebx & 0x00ff_ffff | number << 24;
                }
                TOPOLOGY | TOPOLOGY_V2 => entry.edx = number,
                _ => {}
            }
        }
        let cpuid = CpuId::from_entries(&entries).map_err(|_| BootError::Cpuid)?;
        vcpu.set_cpuid2(&cpuid).map_err(failed("KVM_SET_CPUID2"))?;
    }
    Ok(())
}
