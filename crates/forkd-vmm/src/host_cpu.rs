//! What this host's CPU and KVM can give a guest from elsewhere: printed for the daemon, which has no KVM of its own.

use forkd_proto::host_cpu::HostCpu;
use kvm_ioctls::{Cap, Kvm};

use crate::snapshot::PAYLOAD_VERSION;
use crate::vm::features;
use crate::vm::hardware::{self, KvmError, failed};

/// Asks KVM. Makes a VM for that, which runs nothing.
pub fn look() -> Result<HostCpu, KvmError> {
    let kvm: &Kvm = &*hardware::open()?;
    let supported = kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES);
    let supported = supported.map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
    let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
    let vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
    Ok(HostCpu {
        vendor: features::vendor(supported.as_slice()),
        features: features::of_host(kvm)?.into_iter().collect(),
        tsc_khz: vcpu.get_tsc_khz().map_err(failed("KVM_GET_TSC_KHZ"))?,
        scales_tsc: kvm.check_extension(Cap::TscControl),
        state_version: PAYLOAD_VERSION,
    })
}
