//! What a guest is shown of the CPU: all that KVM supports and a guest may have, or only what every CPU of a level has.
//!
//! ```text
//!   KVM's CPUID ──▶ mask ──▶ host         no virtualisation, no counters, no enclaves: what forkd saves is all there is
//!                        ──▶ x86-64-v3    and of the rest only what the level has, so that the snapshot runs on every such host
//!                        ──▶ x86-64-v2
//! ```
//!
//! KVM goes by the CPUID that a vCPU was given: what is not in it cannot be switched on in XCR0 or in an MSR.

use forkd_proto::control::CpuModel;
use kvm_bindings::kvm_cpuid_entry2;

const FEATURES: u32 = 1;
const POWER: u32 = 6;
const MORE_FEATURES: u32 = 7;
const PERFORMANCE: u32 = 0xa;
const STATES: u32 = 0xd;
const SGX: u32 = 0x12;
const TRACE: u32 = 0x14;
const TILES: u32 = 0x1d;
const TILE_MULTIPLICATION: u32 = 0x1e;
const KVM_FEATURES: u32 = 0x4000_0001;
const AMD_FEATURES: u32 = 0x8000_0001;
const AMD_SIZES: u32 = 0x8000_0008;
const SVM: u32 = 0x8000_000a;
const IBS: u32 = 0x8000_001b;
const SEV: u32 = 0x8000_001f;
const AMD_MORE_FEATURES: u32 = 0x8000_0021;
const AMD_PERFORMANCE: u32 = 0x8000_0022;

/// Leaves that describe what no guest has.
const HIDDEN: [u32; 9] =
    [PERFORMANCE, SGX, TRACE, TILES, TILE_MULTIPLICATION, SVM, IBS, SEV, AMD_PERFORMANCE];

/// What XCR0 can have: x87, SSE, AVX, AVX-512 and protection keys. Tiles need more room than a state here has.
const XCR0: u32 = 0x2e7;
const XCR0_AVX: u32 = 1 << 2;
/// Bytes of the legacy area and the header of XSAVE.
const XSAVE_LEAST: u32 = 576;

/// Bits of the registers that list features.
#[derive(Clone, Copy)]
struct Bits {
    ecx_1: u32,
    edx_1: u32,
    ebx_7: u32,
    ecx_7: u32,
    edx_7: u32,
    ecx_amd: u32,
    edx_amd: u32,
    xcr0: u32,
}

const fn bits<const N: usize>(numbers: [u32; N]) -> u32 {
    let mut all = 0;
    let mut at = 0;
    while at < N {
        all |= 1 << numbers[at];
        at += 1;
    }
    all
}

/// What a guest has never: a virtualisation of its own (whose state forkd does not save), enclaves, counters, tracing, and what
/// keeps state outside XCR0.
const NEVER: Bits = Bits {
    // dtes64, monitor, ds_cpl, vmx, smx, est, tm2, pdcm, dca
    ecx_1: bits([2, 3, 4, 5, 6, 7, 8, 15, 18]),
    // ds
    edx_1: bits([21]),
    // sgx, cqm, mpx, rdt, intel_pt
    ebx_7: bits([2, 12, 14, 15, 25]),
    // shstk, sgx_lc
    ecx_7: bits([7, 30]),
    // ibt, amx_bf16, amx_tile, amx_int8
    edx_7: bits([20, 22, 24, 25]),
    // svm, ibs, skinit, lwp, perfctr_core, perfctr_nb, perfctr_llc
    ecx_amd: bits([2, 10, 12, 15, 23, 24, 28]),
    edx_amd: 0,
    xcr0: !XCR0,
};
/// In leaf 7.1, EAX: amx_fp16.
const NEVER_EAX_7_1: u32 = bits([21]);

/// What the level asks for, and Linux with it. Global pages (pge) are not in it: nested PVM has none, and Linux does without.
const V2: Bits = Bits {
    // sse3, ssse3, cx16, sse4_1, sse4_2, popcnt
    ecx_1: bits([0, 9, 13, 19, 20, 23]),
    // fpu, de, pse, tsc, msr, pae, cx8, cmov, pat, clflush, mmx, fxsr, sse, sse2
    edx_1: bits([0, 2, 3, 4, 5, 6, 8, 15, 16, 19, 23, 24, 25, 26]),
    ebx_7: 0,
    ecx_7: 0,
    edx_7: 0,
    // lahf_lm
    ecx_amd: bits([0]),
    // syscall, nx, lm
    edx_amd: bits([11, 20, 29]),
    xcr0: 0,
};

const V3: Bits = Bits {
    // fma, movbe, xsave, avx, f16c
    ecx_1: V2.ecx_1 | bits([12, 22, 26, 28, 29]),
    // bmi1, avx2, bmi2
    ebx_7: bits([3, 5, 8]),
    // abm
    ecx_amd: V2.ecx_amd | bits([5]),
    xcr0: 3 | XCR0_AVX,
    ..V2
};

/// What a guest may be shown beside its level, since KVM has it on every host that runs Linux guests.
const EVERYWHERE: Bits = Bits {
    // x2apic, tsc_deadline, hypervisor
    ecx_1: bits([21, 24, 31]),
    // vme, mce, apic, sep, mtrr, pge, mca, pse36, ht
    edx_1: bits([1, 7, 9, 11, 12, 13, 14, 17, 28]),
    ebx_7: 0,
    ecx_7: 0,
    edx_7: 0,
    ecx_amd: 0,
    // The bits that repeat those of leaf 1.
    edx_amd: 0x0183_f3ff,
    xcr0: 0,
};

/// In the leaf of KVM's features: both kinds of kvmclock, that it is stable, and that no port is slow.
const KVM_EVERYWHERE: u32 = bits([0, 1, 3, 24]);
/// In leaf 6: the timer of the local APIC never stops.
const ARAT: u32 = bits([2]);

/// Takes out what a guest of this model is not shown.
pub fn mask(entries: &mut Vec<kvm_cpuid_entry2>, model: CpuModel) {
    entries.retain(|entry| !HIDDEN.contains(&entry.function));
    let allowed = match model {
        CpuModel::Host => None,
        CpuModel::V2 => Some(V2),
        CpuModel::V3 => Some(V3),
    };
    for entry in &mut *entries {
        hide(entry);
        if let Some(level) = &allowed {
            keep_level(entry, level);
        }
    }
    if allowed.is_some() {
        entries.retain(|entry| match entry.function {
            MORE_FEATURES => entry.index == 0,
            AMD_MORE_FEATURES => false,
            _ => true,
        });
    }
    let states = entries.iter().find(|entry| (entry.function, entry.index) == (STATES, 0));
    let xcr0 = states.map_or(0, |entry| entry.eax);
    // One leaf for each state that is left; without any, there is no XSAVE.
    entries.retain(|entry| {
        let state = 1u32.checked_shl(entry.index).unwrap_or(0);
        entry.function != STATES || xcr0 != 0 && (entry.index < 2 || xcr0 & state != 0)
    });
    let area = |entry: &kvm_cpuid_entry2| match (entry.function, entry.index) {
        (STATES, 2..) => entry.eax.saturating_add(entry.ebx),
        _ => 0,
    };
    let largest = entries.iter().map(area).max().unwrap_or(0).max(XSAVE_LEAST);
    for entry in entries.iter_mut().filter(|entry| (entry.function, entry.index) == (STATES, 0)) {
        entry.ecx = largest;
    }
}

fn hide(entry: &mut kvm_cpuid_entry2) {
    match (entry.function, entry.index) {
        (FEATURES, _) => {
            entry.ecx &= !NEVER.ecx_1;
            entry.edx &= !NEVER.edx_1;
        }
        (MORE_FEATURES, 0) => {
            entry.ebx &= !NEVER.ebx_7;
            entry.ecx &= !NEVER.ecx_7;
            entry.edx &= !NEVER.edx_7;
        }
        (MORE_FEATURES, 1) => entry.eax &= !NEVER_EAX_7_1,
        (STATES, 0) => {
            entry.eax &= !NEVER.xcr0;
            entry.edx = 0;
        }
        // States of the kernel's own, of which none is left.
        (STATES, 1) => (entry.ecx, entry.edx) = (0, 0),
        (AMD_FEATURES, _) => {
            entry.ecx &= !NEVER.ecx_amd;
            entry.edx &= !NEVER.edx_amd;
        }
        _ => {}
    }
}

fn keep_level(entry: &mut kvm_cpuid_entry2, level: &Bits) {
    match (entry.function, entry.index) {
        (FEATURES, _) => {
            entry.ecx &= level.ecx_1 | EVERYWHERE.ecx_1;
            entry.edx &= level.edx_1 | EVERYWHERE.edx_1;
        }
        (POWER, _) => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (entry.eax & ARAT, 0, 0, 0),
        (MORE_FEATURES, 0) => {
            (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, entry.ebx & level.ebx_7, 0, 0);
        }
        (STATES, 0) => entry.eax &= level.xcr0,
        (STATES, 1) => (entry.eax, entry.ebx) = (0, 0),
        (KVM_FEATURES, _) => entry.eax &= KVM_EVERYWHERE,
        (AMD_FEATURES, _) => {
            entry.ecx &= level.ecx_amd;
            entry.edx &= level.edx_amd | EVERYWHERE.edx_amd;
        }
        (AMD_SIZES, _) => entry.ebx = 0,
        _ => {}
    }
}

/// Whether these leaves have all that the model asks for.
pub fn has(entries: &[kvm_cpuid_entry2], model: CpuModel) -> bool {
    let level = match model {
        CpuModel::Host => return true,
        CpuModel::V2 => V2,
        CpuModel::V3 => V3,
    };
    let leaf = |function, index| {
        let found = entries.iter().find(|entry| (entry.function, entry.index) == (function, index));
        found.copied().unwrap_or_default()
    };
    let (first, more, states, amd) =
        (leaf(FEATURES, 0), leaf(MORE_FEATURES, 0), leaf(STATES, 0), leaf(AMD_FEATURES, 0));
    [
        (first.ecx, level.ecx_1),
        (first.edx, level.edx_1),
        (more.ebx, level.ebx_7),
        (states.eax, level.xcr0),
        (amd.ecx, level.ecx_amd),
        (amd.edx, level.edx_amd),
    ]
    .iter()
    .all(|(found, needed)| found & needed == *needed)
}

/// Whether a guest's state has this MSR: not those of a virtualisation of its own.
pub fn has_msr(index: u32) -> bool {
    const FEATURE_CONTROL: u32 = 0x3a;
    const VM_CR: u32 = 0xc001_0114;
    const VM_HSAVE_PA: u32 = 0xc001_0117;
    !matches!(index, FEATURE_CONTROL | 0x480..=0x493 | VM_CR | VM_HSAVE_PA)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::features;
    use proptest::prelude::*;

    /// A CPU that can do everything.
    fn everything() -> Vec<kvm_cpuid_entry2> {
        let all = |function, index| kvm_cpuid_entry2 {
            function,
            index,
            eax: u32::MAX,
            ebx: u32::MAX,
            ecx: u32::MAX,
            edx: u32::MAX,
            ..Default::default()
        };
        let state =
            |index, eax, ebx| kvm_cpuid_entry2 { function: STATES, index, eax, ebx, ..Default::default() };
        let leaves =
            [1, 6, 0xa, 0x12, 0x14, 0x1d, 0x1e, KVM_FEATURES, AMD_FEATURES, AMD_SIZES, SVM, 0x8000_0021];
        let mut entries: Vec<_> = leaves.into_iter().map(|leaf| all(leaf, 0)).collect();
        entries.extend([all(7, 0), all(7, 1), all(STATES, 0), all(STATES, 1)]);
        // AVX, the three of AVX-512, protection keys, tiles.
        entries.extend([
            state(2, 256, 576),
            state(5, 64, 1088),
            state(6, 512, 1152),
            state(7, 1024, 1664),
            state(9, 8, 2688),
            state(17, 64, 2752),
            state(18, 8192, 2816),
        ]);
        entries
    }

    fn masked(model: CpuModel) -> Vec<kvm_cpuid_entry2> {
        let mut entries = everything();
        mask(&mut entries, model);
        entries
    }

    fn states(entries: &[kvm_cpuid_entry2]) -> Vec<u32> {
        entries.iter().filter(|entry| entry.function == STATES).map(|entry| entry.index).collect()
    }

    #[test]
    fn no_guest_can_be_a_host_or_have_what_is_not_saved() {
        for model in [CpuModel::Host, CpuModel::V2, CpuModel::V3] {
            let entries = masked(model);
            let names = features::names(&entries);
            for hidden in
                ["vmx", "smx", "svm", "sgx", "intel_pt", "amx_tile", "pdcm", "perfctr_core", "shstk"]
            {
                assert!(!names.contains(hidden), "{model:?}: {hidden}");
            }
            assert!(entries.iter().all(|entry| !HIDDEN.contains(&entry.function)), "{model:?}");
        }
        let host = masked(CpuModel::Host);
        assert_eq!(states(&host), [0, 1, 2, 5, 6, 7, 9]);
        let first = host.iter().find(|entry| entry.function == STATES).unwrap();
        assert_eq!((first.eax, first.ecx, first.edx), (XCR0, 2696, 0));
        for kept in ["avx512f", "rdrand", "pku", "aes"] {
            assert!(features::names(&host).contains(kept), "{kept}");
        }
    }

    #[test]
    fn a_level_is_what_its_name_says() {
        let v2 = masked(CpuModel::V2);
        let names = features::names(&v2);
        assert!(names.contains("sse4_2") && names.contains("popcnt") && names.contains("cx16"));
        for newer in ["avx", "xsave", "aes", "rdrand", "fsgsbase", "pcid", "pdpe1gb"] {
            assert!(!names.contains(newer), "{newer}");
        }
        assert_eq!(states(&v2), [0; 0], "no XSAVE");
        let v3 = masked(CpuModel::V3);
        let names = features::names(&v3);
        for new in ["avx", "avx2", "bmi1", "bmi2", "fma", "f16c", "movbe", "abm", "xsave"] {
            assert!(names.contains(new), "{new}");
        }
        assert!(!names.contains("avx512f") && !names.contains("xsaves"));
        assert_eq!(states(&v3), [0, 1, 2]);
        assert_eq!(v3.iter().find(|entry| entry.function == STATES).unwrap().ecx, 832);
        // Every name is one that the list knows, and none is this CPU's own.
        assert!(
            names
                .iter()
                .all(|name| !name.contains('.') || name.starts_with("d.0.") || name.starts_with("40"))
        );
    }

    fn without_global_pages() -> Vec<kvm_cpuid_entry2> {
        let mut entries = everything();
        for entry in &mut entries {
            entry.edx &= !bits([13]);
        }
        entries
    }

    #[test]
    fn what_a_host_cannot_give_is_known() {
        for (entries, models) in [
            (everything(), vec![CpuModel::Host, CpuModel::V2, CpuModel::V3]),
            (masked(CpuModel::V3), vec![CpuModel::Host, CpuModel::V2, CpuModel::V3]),
            (masked(CpuModel::V2), vec![CpuModel::Host, CpuModel::V2]),
            (without_global_pages(), vec![CpuModel::Host, CpuModel::V2, CpuModel::V3]),
            (vec![], vec![CpuModel::Host]),
        ] {
            for model in [CpuModel::Host, CpuModel::V2, CpuModel::V3] {
                assert_eq!(has(&entries, model), models.contains(&model), "{model:?}");
            }
        }
    }

    #[test]
    fn msrs_of_virtualisation_are_left_out() {
        for index in [0x3a, 0x480, 0x491, 0xc001_0114, 0xc001_0117] {
            assert!(!has_msr(index), "{index:#x}");
        }
        for index in [0x10, 0x174, 0x6e0, 0xc000_0080, 0xc000_0103, 0x4b56_4d01] {
            assert!(has_msr(index), "{index:#x}");
        }
    }

    proptest! {
        #[test]
        fn masking_takes_and_never_gives(
            leaves in proptest::collection::vec(
                (prop_oneof![Just(1u32), Just(7), Just(0xd), Just(AMD_FEATURES), any::<u32>()], 0u32..40, any::<[u32; 4]>()),
                0..40,
            ),
            model in prop_oneof![Just(CpuModel::Host), Just(CpuModel::V2), Just(CpuModel::V3)],
        ) {
            let mut leaves: Vec<_> = leaves
                .into_iter()
                .map(|(function, index, [eax, ebx, ecx, edx])| kvm_cpuid_entry2 {
                    function, index, eax, ebx, ecx, edx, ..Default::default()
                })
                .collect();
            leaves.sort_by_key(|entry| (entry.function, entry.index));
            leaves.dedup_by_key(|entry| (entry.function, entry.index));
            let before = features::names(&leaves);
            mask(&mut leaves, model);
            let after = features::names(&leaves);
            prop_assert!(after.is_subset(&before));
            mask(&mut leaves, model);
            prop_assert_eq!(features::names(&leaves), after);
        }
    }
}
