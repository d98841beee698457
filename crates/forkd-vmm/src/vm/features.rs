//! The names of what a CPU can do, from CPUID: what a snapshot's guest may use, and what this host has to offer.
//!
//! A bit without a name here is called by its place, `7.0.ebx.31`, so that a feature newer than this list is compared too.

use std::collections::BTreeSet;

use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_cpuid_entry2};
use kvm_ioctls::Kvm;

use super::hardware::{KvmError, failed};

/// One register of CPUID that has a bit for each feature.
struct Register {
    leaf: u32,
    subleaf: u32,
    name: &'static str,
    /// The names of the bits, from bit 0 on. An empty one has none.
    bits: &'static str,
    /// Bits that say what the guest's kernel has switched on, or what KVM and not the CPU does.
    ignored: u32,
}

const REGISTERS: [Register; 12] = [
    Register {
        leaf: 1,
        subleaf: 0,
        name: "ecx",
        bits: "sse3,pclmulqdq,dtes64,monitor,ds_cpl,vmx,smx,est,tm2,ssse3,cid,sdbg,fma,cx16,xtpr,pdcm,,pcid,dca,\
               sse4_1,sse4_2,,movbe,popcnt,,aes,xsave,,avx,f16c,rdrand",
        // x2apic, tsc_deadline, osxsave, hypervisor
        ignored: 1 << 21 | 1 << 24 | 1 << 27 | 1 << 31,
    },
    Register {
        leaf: 1,
        subleaf: 0,
        name: "edx",
        bits: "fpu,vme,de,pse,tsc,msr,pae,mce,cx8,,,sep,mtrr,pge,mca,cmov,pat,pse36,pn,clflush,,ds,acpi,mmx,fxsr,sse,\
               sse2,ss,ht,tm,,pbe",
        // apic
        ignored: 1 << 9,
    },
    Register {
        leaf: 7,
        subleaf: 0,
        name: "ebx",
        bits: "fsgsbase,tsc_adjust,sgx,bmi1,hle,avx2,,smep,bmi2,erms,invpcid,rtm,cqm,,mpx,rdt,avx512f,avx512dq,rdseed,\
               adx,smap,avx512ifma,,clflushopt,clwb,intel_pt,avx512pf,avx512er,avx512cd,sha_ni,avx512bw,avx512vl",
        ignored: 0,
    },
    Register {
        leaf: 7,
        subleaf: 0,
        name: "ecx",
        bits: "prefetchwt1,avx512vbmi,umip,pku,,waitpkg,avx512_vbmi2,shstk,gfni,vaes,vpclmulqdq,avx512_vnni,\
               avx512_bitalg,,avx512_vpopcntdq,,la57,,,,,,rdpid,,bus_lock_detect,cldemote,,movdiri,movdir64b",
        // ospke
        ignored: 1 << 4,
    },
    Register {
        leaf: 7,
        subleaf: 0,
        name: "edx",
        bits: ",,avx512_4vnniw,avx512_4fmaps,fsrm,,,,avx512_vp2intersect,,md_clear,,,,serialize,,tsxldtrk,,,,ibt,,\
               amx_bf16,avx512_fp16,amx_tile,amx_int8,spec_ctrl,stibp,flush_l1d,arch_capabilities,,ssbd",
        ignored: 0,
    },
    Register {
        leaf: 7,
        subleaf: 1,
        name: "eax",
        bits: ",,,,avx_vnni,avx512_bf16,,,,,fzrm,fsrs,fsrc,,,,,,,,,amx_fp16,,avx_ifma",
        ignored: 0,
    },
    Register { leaf: 0xd, subleaf: 0, name: "eax", bits: "", ignored: 0 },
    Register { leaf: 0xd, subleaf: 1, name: "eax", bits: "xsaveopt,xsavec,xgetbv1,xsaves,xfd", ignored: 0 },
    Register {
        leaf: 0x8000_0001,
        subleaf: 0,
        name: "ecx",
        bits: "lahf_lm,cmp_legacy,svm,extapic,cr8_legacy,abm,sse4a,misalignsse,3dnowprefetch,osvw,ibs,xop,skinit,wdt,,\
               lwp,fma4,tce,,,,tbm,topoext,perfctr_core,perfctr_nb,,bpext,ptsc,perfctr_llc,mwaitx",
        ignored: 0,
    },
    Register {
        leaf: 0x8000_0001,
        subleaf: 0,
        name: "edx",
        // The bits that repeat those of leaf 1 are left to it.
        bits: ",,,,,,,,,,,syscall,,,,,,,,mp,nx,,mmxext,,,fxsr_opt,pdpe1gb,rdtscp,,lm,3dnowext,3dnow",
        ignored: 0x0183_f7ff,
    },
    Register {
        leaf: 0x8000_0008,
        subleaf: 0,
        name: "ebx",
        bits: "clzero,irperf,xsaveerptr,,rdpru,,,,,wbnoinvd,,,amd_ibpb,,amd_ibrs,amd_stibp",
        ignored: 0,
    },
    Register { leaf: 0x4000_0001, subleaf: 0, name: "eax", bits: "", ignored: 0 },
];

/// Who has made the CPU, from leaf 0. `None` if that is not text.
pub fn vendor(cpuid: &[kvm_cpuid_entry2]) -> Option<String> {
    let entry = cpuid.iter().find(|entry| entry.function == 0)?;
    let bytes = [entry.ebx, entry.edx, entry.ecx].map(u32::to_le_bytes).concat();
    let text = String::from_utf8(bytes).ok()?;
    text.bytes().all(|byte| byte.is_ascii_graphic()).then_some(text)
}

/// The features that these leaves show.
pub fn names(cpuid: &[kvm_cpuid_entry2]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for register in &REGISTERS {
        let entry = cpuid.iter().find(|e| e.function == register.leaf && e.index == register.subleaf);
        let Some(entry) = entry else { continue };
        let value = match register.name {
            "eax" => entry.eax,
            "ebx" => entry.ebx,
            "ecx" => entry.ecx,
            _ => entry.edx,
        };
        let mut known = register.bits.split(',');
        for bit in 0..u32::BITS {
            let name = known.next().unwrap_or_default();
            if value & !register.ignored & (1 << bit) == 0 {
                continue;
            }
            names.insert(match name {
                "" => format!("{:x}.{}.{}.{bit}", register.leaf, register.subleaf, register.name),
                name => name.to_owned(),
            });
        }
    }
    names
}

/// The features that this host's KVM can give to a guest: those it says it supports, and those that a vCPU has all the
/// same. A KVM that cannot intercept CPUID shows its guests what the CPU shows.
pub fn of_host(kvm: &Kvm) -> Result<BTreeSet<String>, KvmError> {
    let supported = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES);
    let supported = supported.map_err(failed("KVM_GET_SUPPORTED_CPUID"))?;
    let vm = kvm.create_vm().map_err(failed("KVM_CREATE_VM"))?;
    let vcpu = vm.create_vcpu(0).map_err(failed("KVM_CREATE_VCPU"))?;
    vcpu.set_cpuid2(&supported).map_err(failed("KVM_SET_CPUID2"))?;
    let shown = vcpu.get_cpuid2(KVM_MAX_CPUID_ENTRIES).map_err(failed("KVM_GET_CPUID2"))?;
    let mut features = names(supported.as_slice());
    features.extend(names(shown.as_slice()));
    Ok(features)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(function: u32, index: u32) -> kvm_cpuid_entry2 {
        kvm_cpuid_entry2 { function, index, ..Default::default() }
    }

    #[test]
    fn bits_have_their_names_or_their_places() {
        let cpuid = [
            kvm_cpuid_entry2 {
                ecx: 1 << 28 | 1 << 30 | 1 << 31 | 1 << 16,
                edx: 1 << 26 | 1 << 9,
                ..leaf(1, 0)
            },
            kvm_cpuid_entry2 { ebx: 1 << 5 | 1 << 16 | 1 << 31, ..leaf(7, 0) },
            kvm_cpuid_entry2 { ebx: u32::MAX, ..leaf(7, 2) },
            kvm_cpuid_entry2 { eax: 1 << 2, ..leaf(0xd, 0) },
            kvm_cpuid_entry2 { edx: 1 << 29 | 1 << 20 | 1, ..leaf(0x8000_0001, 0) },
        ];
        let found: Vec<String> = names(&cpuid).into_iter().collect();
        assert_eq!(
            found,
            ["1.0.ecx.16", "avx", "avx2", "avx512f", "avx512vl", "d.0.eax.2", "lm", "nx", "rdrand", "sse2"]
        );
    }

    #[test]
    fn a_vendor_is_twelve_characters() {
        let [ebx, edx, ecx] = [*b"Auth", *b"enti", *b"cAMD"].map(u32::from_le_bytes);
        let entry = kvm_cpuid_entry2 { ebx, edx, ecx, ..leaf(0, 0) };
        assert_eq!(vendor(&[leaf(1, 0), entry]).as_deref(), Some("AuthenticAMD"));
        assert_eq!(vendor(&[leaf(0, 0)]), None);
        assert_eq!(vendor(&[]), None);
    }

    #[test]
    fn no_register_names_more_than_its_bits() {
        for register in &REGISTERS {
            assert!(register.bits.split(',').count() <= 32, "{:#x}.{}", register.leaf, register.name);
            let named = register.bits.split(',').filter(|name| !name.is_empty());
            assert!(named.clone().all(|name| name.trim() == name && name.is_ascii()));
        }
    }
}
