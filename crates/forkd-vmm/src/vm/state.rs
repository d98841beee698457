//! The state of a VM beyond its memory: plain data, taken from KVM while all vCPUs are parked and put into another VM.
//!
//! The order of the calls matters, and leaving any out hangs the guest in silence: without the LAPIC, the interrupt
//! controllers, the clock or the MSRs no timer ever fires again.

#![expect(unsafe_code, reason = "KVM_SET_XSAVE trusts the size of its argument")]

use std::sync::OnceLock;

use forkd_proto::control::CpuModel;
use kvm_bindings::{
    CpuId, KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_MAX_CPUID_ENTRIES, Msrs,
    kvm_clock_data, kvm_cpuid_entry2, kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state,
    kvm_msr_entry, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use serde::{Deserialize, Serialize};

use super::cpu;
use super::hardware::{KvmError, failed};

const IRQCHIPS: [u32; 3] = [KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE, KVM_IRQCHIP_IOAPIC];

/// How many MSRs KVM takes in one call.
const MSRS_A_CALL: usize = 200;

/// Everything that KVM keeps of a VM beside its memory.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmState {
    pub vcpus: Vec<VcpuState>,
    /// The rate of the guest's TSC.
    tsc_khz: u32,
    clock: kvm_clock_data,
    irqchips: Vec<kvm_irqchip>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VcpuState {
    cpuid: Vec<kvm_cpuid_entry2>,
    mp_state: kvm_mp_state,
    regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: Box<kvm_xsave>,
    xcrs: kvm_xcrs,
    debug_regs: kvm_debugregs,
    lapic: kvm_lapic_state,
    msrs: Vec<kvm_msr_entry>,
    events: kvm_vcpu_events,
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    Kvm(#[from] KvmError),
    #[error("KVM refused MSR {index:#x} = {value:#x}")]
    Msr { index: u32, value: u64 },
    #[error("more CPUID leaves or MSRs than KVM can have")]
    TooMany,
    #[error(
        "the guest's TSC runs at {guest} kHz, this host's at {host} kHz, and KVM cannot change that here"
    )]
    TscRate { guest: u32, host: u32, source: kvm_ioctls::Error },
}

/// The MSRs that KVM keeps. The list is the host's, so a process and those forked from it ask once, and not in a pause.
pub fn msr_indices(kvm: &Kvm) -> Result<&'static [u32], KvmError> {
    static INDICES: OnceLock<Vec<u32>> = OnceLock::new();
    if let Some(indices) = INDICES.get() {
        return Ok(indices);
    }
    let indices = kvm.get_msr_index_list().map_err(failed("KVM_GET_MSR_INDEX_LIST"))?;
    let kept = || indices.as_slice().iter().copied().filter(|index| cpu::has_msr(*index)).collect();
    Ok(INDICES.get_or_init(kept))
}

impl VmState {
    /// The rate of the guest's TSC.
    pub fn tsc_khz(&self) -> u32 {
        self.tsc_khz
    }

    /// Takes the state. All vCPUs are parked, with no port or memory access half done.
    pub fn save(kvm: &Kvm, vm: &VmFd, vcpus: &[&VcpuFd]) -> Result<VmState, StateError> {
        let indices = msr_indices(kvm)?;
        let tsc_khz = match vcpus.first() {
            Some(vcpu) => vcpu.get_tsc_khz().map_err(failed("KVM_GET_TSC_KHZ"))?,
            None => 0,
        };
        let vcpus = vcpus.iter().map(|vcpu| VcpuState::save(vcpu, indices));
        let vcpus = vcpus.collect::<Result<_, _>>()?;
        let mut irqchips = Vec::new();
        for chip_id in IRQCHIPS {
            let mut chip = kvm_irqchip { chip_id, ..Default::default() };
            vm.get_irqchip(&mut chip).map_err(failed("KVM_GET_IRQCHIP"))?;
            irqchips.push(chip);
        }
        let clock = vm.get_clock().map_err(failed("KVM_GET_CLOCK"))?;
        Ok(VmState { vcpus, tsc_khz, clock, irqchips })
    }

    /// Puts the state into a new VM with as many vCPUs.
    pub fn restore(&self, vm: &VmFd, vcpus: &[VcpuFd]) -> Result<(), StateError> {
        forkd_proto::passes!();
        for (state, vcpu) in self.vcpus.iter().zip(vcpus) {
            set_tsc_rate(vcpu, self.tsc_khz)?;
            state.restore(vcpu)?;
        }
        // The guest's clock continues from where it stopped; its agent sets the real time.
        let clock = kvm_clock_data { flags: 0, ..self.clock };
        vm.set_clock(&clock).map_err(failed("KVM_SET_CLOCK"))?;
        for chip in &self.irqchips {
            vm.set_irqchip(chip).map_err(failed("KVM_SET_IRQCHIP"))?;
        }
        for (state, vcpu) in self.vcpus.iter().zip(vcpus) {
            // Tells the guest's watchdogs that it was stopped from outside. Without kvmclock there is no watchdog to tell.
            if state.uses_kvmclock() {
                vcpu.kvmclock_ctrl().map_err(failed("KVM_KVMCLOCK_CTRL"))?;
            }
        }
        Ok(())
    }
}

/// Gives a vCPU the TSC rate that its guest has measured. Before its TSC is set.
fn set_tsc_rate(vcpu: &VcpuFd, guest: u32) -> Result<(), StateError> {
    let host = vcpu.get_tsc_khz().map_err(failed("KVM_GET_TSC_KHZ"))?;
    if host == guest {
        return Ok(());
    }
    vcpu.set_tsc_khz(guest).map_err(|source| StateError::TscRate { guest, host, source })
}

impl VcpuState {
    fn save(vcpu: &VcpuFd, msr_indices: &[u32]) -> Result<VcpuState, StateError> {
        let cpuid = vcpu.get_cpuid2(KVM_MAX_CPUID_ENTRIES).map_err(failed("KVM_GET_CPUID2"))?;
        // First of all: it makes KVM take in INIT and SIPI that have arrived and not been acted on.
        let mp_state = vcpu.get_mp_state().map_err(failed("KVM_GET_MP_STATE"))?;
        let lapic = vcpu.get_lapic().map_err(failed("KVM_GET_LAPIC"))?;
        let mut msrs = save_msrs(vcpu, msr_indices)?;
        if uses_deadline_timer(&lapic) {
            keep_deadline(&mut msrs);
        }
        Ok(VcpuState {
            cpuid: cpuid.as_slice().to_vec(),
            mp_state,
            regs: vcpu.get_regs().map_err(failed("KVM_GET_REGS"))?,
            sregs: vcpu.get_sregs().map_err(failed("KVM_GET_SREGS"))?,
            xsave: Box::new(vcpu.get_xsave().map_err(failed("KVM_GET_XSAVE"))?),
            xcrs: vcpu.get_xcrs().map_err(failed("KVM_GET_XCRS"))?,
            debug_regs: vcpu.get_debug_regs().map_err(failed("KVM_GET_DEBUGREGS"))?,
            lapic,
            msrs,
            events: vcpu.get_vcpu_events().map_err(failed("KVM_GET_VCPU_EVENTS"))?,
        })
    }

    fn restore(&self, vcpu: &VcpuFd) -> Result<(), StateError> {
        let cpuid = CpuId::from_entries(&self.cpuid).map_err(|_| StateError::TooMany)?;
        vcpu.set_cpuid2(&cpuid).map_err(failed("KVM_SET_CPUID2"))?;
        vcpu.set_mp_state(self.mp_state).map_err(failed("KVM_SET_MP_STATE"))?;
        vcpu.set_regs(&self.regs).map_err(failed("KVM_SET_REGS"))?;
        vcpu.set_sregs(&self.sregs).map_err(failed("KVM_SET_SREGS"))?;
        // SAFETY: KVM reads no more than a `kvm_xsave` has, whatever the CPUID says: only a process that has asked the kernel
        // for features with a larger state can give them to a guest, and nothing here ever asks.
        unsafe { vcpu.set_xsave(&self.xsave) }.map_err(failed("KVM_SET_XSAVE"))?;
        vcpu.set_xcrs(&self.xcrs).map_err(failed("KVM_SET_XCRS"))?;
        vcpu.set_debug_regs(&self.debug_regs).map_err(failed("KVM_SET_DEBUGREGS"))?;
        vcpu.set_lapic(&self.lapic).map_err(failed("KVM_SET_LAPIC"))?;
        restore_msrs(vcpu, &self.msrs)?;
        vcpu.set_vcpu_events(&self.events).map_err(failed("KVM_SET_VCPU_EVENTS"))?;
        Ok(())
    }

    /// What the guest was told about its CPU.
    pub fn cpuid(&self) -> &[kvm_cpuid_entry2] {
        &self.cpuid
    }

    /// Takes out what no guest has. A file may say anything, and older ones have all that their host had.
    pub fn hide_what_no_guest_has(&mut self) {
        cpu::mask(&mut self.cpuid, CpuModel::Host);
        self.msrs.retain(|msr| cpu::has_msr(msr.index));
    }

    fn uses_kvmclock(&self) -> bool {
        const KVM_SYSTEM_TIME_NEW: u32 = 0x4b56_4d01;
        const ENABLED: u64 = 1;
        self.msrs.iter().any(|msr| msr.index == KVM_SYSTEM_TIME_NEW && msr.data & ENABLED != 0)
    }
}

/// Whether the guest has its timer armed by writing a time to an MSR, and wants its interrupt.
fn uses_deadline_timer(lapic: &kvm_lapic_state) -> bool {
    /// The timer's entry in the local vector table; its mask, and its mode in two bits.
    const TIMER: usize = 0x320;
    const MASKED: u8 = 1;
    const MODE: u8 = 0b110;
    const DEADLINE: u8 = 0b100;
    // The third byte has bits 16 to 23.
    let entry = lapic.regs[TIMER + 2].cast_unsigned();
    entry & MASKED == 0 && entry & MODE == DEADLINE
}

/// A deadline of 0 says that the timer has fired. KVM clears it when it makes the interrupt pending, and now and then the
/// state that is read has neither: a vCPU that is restored from it waits for its timer for ever. A deadline of now costs a
/// guest one interrupt that it did not wait for, which it looks at and forgets.
fn keep_deadline(msrs: &mut [kvm_msr_entry]) {
    const TSC: u32 = 0x10;
    const TSC_DEADLINE: u32 = 0x6e0;
    let now = msrs.iter().find(|msr| msr.index == TSC).map_or(0, |msr| msr.data);
    for msr in msrs.iter_mut().filter(|msr| msr.index == TSC_DEADLINE && msr.data == 0) {
        msr.data = now;
    }
}

/// Reads all MSRs that KVM has to offer. It stops at one that this vCPU does not have, which is then left out.
fn save_msrs(vcpu: &VcpuFd, indices: &[u32]) -> Result<Vec<kvm_msr_entry>, StateError> {
    let mut saved = Vec::with_capacity(indices.len());
    let mut rest = indices;
    while !rest.is_empty() {
        let batch = &rest[..rest.len().min(MSRS_A_CALL)];
        let entries: Vec<_> =
            batch.iter().map(|&index| kvm_msr_entry { index, ..Default::default() }).collect();
        let mut msrs = Msrs::from_entries(&entries).map_err(|_| StateError::TooMany)?;
        let read = vcpu.get_msrs(&mut msrs).map_err(failed("KVM_GET_MSRS"))?;
        saved.extend_from_slice(&msrs.as_slice()[..read]);
        let skipped = usize::from(read < batch.len());
        rest = &rest[read + skipped..];
    }
    Ok(saved)
}

fn restore_msrs(vcpu: &VcpuFd, entries: &[kvm_msr_entry]) -> Result<(), StateError> {
    for batch in entries.chunks(MSRS_A_CALL) {
        let msrs = Msrs::from_entries(batch).map_err(|_| StateError::TooMany)?;
        let written = vcpu.set_msrs(&msrs).map_err(failed("KVM_SET_MSRS"))?;
        if let Some(refused) = batch.get(written) {
            return Err(StateError::Msr { index: refused.index, value: refused.data });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest from a host with another rate: KVM gives it that rate where it can, and it is refused by name where not.
    #[test]
    fn a_guest_keeps_the_rate_of_its_tsc_or_is_refused() {
        let kvm = Kvm::new().unwrap();
        let vm = kvm.create_vm().unwrap();
        let first = vm.create_vcpu(0).unwrap();
        let host = first.get_tsc_khz().unwrap();
        set_tsc_rate(&first, host).unwrap();
        let scales = kvm.check_extension(kvm_ioctls::Cap::TscControl);
        for (id, guest) in [(1, host / 2), (2, host / 3 * 2)] {
            // Each time a new one: KVM keeps a rate that it has refused.
            let vcpu = vm.create_vcpu(id).unwrap();
            match set_tsc_rate(&vcpu, guest) {
                Ok(()) => {
                    assert!(scales, "{guest} kHz");
                    assert_eq!(vcpu.get_tsc_khz().unwrap(), guest);
                }
                Err(StateError::TscRate { guest: told, host: its, .. }) => {
                    assert!(!scales, "{guest} kHz");
                    assert_eq!((told, its), (guest, host));
                }
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn a_deadline_that_has_passed_comes_again() {
        let msr = |index, data| kvm_msr_entry { index, data, ..Default::default() };
        let mut msrs = [msr(0x10, 77), msr(0x6e0, 0), msr(0x174, 0)];
        keep_deadline(&mut msrs);
        assert_eq!(msrs.map(|msr| msr.data), [77, 77, 0]);
        let mut armed = [msr(0x10, 77), msr(0x6e0, 99)];
        keep_deadline(&mut armed);
        assert_eq!(armed[1].data, 99);

        let lapic = |entry: u32| {
            let mut lapic = kvm_lapic_state::default();
            for (register, byte) in lapic.regs[0x320..].iter_mut().zip(entry.to_le_bytes()) {
                *register = byte.cast_signed();
            }
            lapic
        };
        assert!(uses_deadline_timer(&lapic(0x400ec)));
        assert!(!uses_deadline_timer(&lapic(0x500ec)), "masked");
        assert!(!uses_deadline_timer(&lapic(0x200ec)), "periodic");
    }
}
