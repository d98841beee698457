//! What KVM counts of a vCPU: exits, and faults on guest memory.
//!
//! ```text
//!   header:      flags, length of names, number of descriptors, offsets of id, descriptors, data   6 × u32
//!   descriptor:  flags u32, exponent i16, size u16, offset u32, bucket size u32, name
//!   data:        u64 at the descriptor's offset
//! ```

#![expect(unsafe_code, reason = "kvm-ioctls has no KVM_GET_STATS_FD")]

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;

use forkd_proto::control::KvmCounts;
use kvm_ioctls::VcpuFd;
use vmm_sys_util::ioctl::ioctl;

/// _IO(KVMIO, 0xce)
const KVM_GET_STATS_FD: u64 = 0xaece;
const HEADER: usize = 24;
const DESCRIPTOR: usize = 16;
/// The kernel has some forty, with names of 48 bytes.
const MAX_DESCRIPTORS: usize = 1024;
const MAX_NAME: usize = 256;

/// The counters of a vCPU. They can be read while it runs.
#[derive(Debug)]
pub struct Counts {
    file: File,
}

impl Counts {
    /// A vCPU that runs keeps others from asking this of it: it is asked when it is made. None on a kernel before 5.14.
    pub fn of(vcpu: &VcpuFd) -> Option<Counts> {
        // SAFETY: the call has no argument, and returns a new descriptor or fails.
        let descriptor = unsafe { ioctl(vcpu, KVM_GET_STATS_FD) };
        // SAFETY: the kernel has just opened it for this caller, and no other code knows of it.
        (descriptor >= 0).then(|| Counts { file: unsafe { File::from_raw_fd(descriptor) } })
    }

    pub fn read(&self) -> io::Result<KvmCounts> {
        let mut header = [0; HEADER];
        self.file.read_exact_at(&mut header, 0)?;
        let name_bytes = (u32_at(&header, 4) as usize).min(MAX_NAME);
        let count = (u32_at(&header, 8) as usize).min(MAX_DESCRIPTORS);
        let (descriptors_at, data_at) = (u32_at(&header, 16), u32_at(&header, 20));
        let mut descriptors = vec![0; count * (DESCRIPTOR + name_bytes)];
        self.file.read_exact_at(&mut descriptors, descriptors_at.into())?;
        let number = |wanted: &str| {
            let named = |descriptor: &&[u8]| name_of(descriptor) == wanted.as_bytes();
            let descriptor = descriptors.chunks_exact(DESCRIPTOR + name_bytes).find(named);
            let descriptor = descriptor.ok_or(io::ErrorKind::NotFound)?;
            let mut number = [0; 8];
            let at = u64::from(data_at) + u64::from(u32_at(descriptor, 8));
            self.file.read_exact_at(&mut number, at)?;
            Ok::<_, io::Error>(u64::from_ne_bytes(number))
        };
        Ok(KvmCounts { exits: number("exits")?, page_faults: number("pf_taken")? })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

fn name_of(descriptor: &[u8]) -> &[u8] {
    let name = descriptor.get(DESCRIPTOR..).unwrap_or_default();
    name.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(descriptors: &[(&str, u64)], name_bytes: u32) -> Counts {
        let count = u32::try_from(descriptors.len()).unwrap();
        let data_at = 24 + count * (16 + name_bytes);
        let mut bytes = Vec::new();
        for word in [0, name_bytes, count, 24, 24, data_at] {
            bytes.extend(word.to_ne_bytes());
        }
        for (index, (name, _)) in (0u32..).zip(descriptors) {
            let mut padded = name.as_bytes().to_vec();
            padded.resize(name_bytes as usize, 0);
            for word in [0, 1 << 16, index * 8, 0] {
                bytes.extend(word.to_ne_bytes());
            }
            bytes.extend(padded);
        }
        bytes.extend(descriptors.iter().flat_map(|(_, number)| number.to_ne_bytes()));
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        Counts { file }
    }

    #[test]
    fn counters_are_found_by_name() {
        let counts = file(&[("pf_fixed", 1), ("pf_taken", 77), ("exits", 1 << 40)], 48);
        assert_eq!(counts.read().unwrap(), KvmCounts { exits: 1 << 40, page_faults: 77 });
        assert!(file(&[("pf_taken", 77), ("exits_else", 3)], 48).read().is_err());
        assert!(file(&[], 0).read().is_err());
    }
}
