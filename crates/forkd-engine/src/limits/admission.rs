//! Whether there is room: a function of what is there, what is wanted and what is allowed, and of nothing else.

use crate::limits::owner::Who;

/// What this host gives away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most sandboxes at once.
    pub sandboxes: u64,
    /// The most memory that zygotes and sandboxes may come to hold privately, as far as it can be foreseen.
    pub memory_bytes: u64,
    /// The most memory that processes of snapshots on disk hold to be forked from, beyond those that are just used.
    pub zygote_bytes: u64,
    /// Disk space that is left alone.
    pub free_disk_bytes: u64,
}

/// What is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Present {
    /// Those that are being made too.
    pub sandboxes: u64,
    /// What the host could still give.
    pub available_memory_bytes: u64,
    pub free_disk_bytes: u64,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdmissionRequest {
    pub sandboxes: u64,
    /// Of each.
    pub memory_bytes: u64,
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("sandbox limit exceeded: {present} running, {wanted} requested, limit {most}")]
    Sandboxes { wanted: u64, present: u64, most: u64 },
    #[error("not enough memory: {wanted_mib} MiB requested, {available_mib} MiB available on this host")]
    Memory { wanted_mib: u64, available_mib: u64 },
    #[error(
        "not enough memory for the branch: it keeps {wanted_mib} MiB, {available_mib} MiB available on this host"
    )]
    Branch { wanted_mib: u64, available_mib: u64 },
    #[error("limit of the {who} exceeded for {what}: {held} in use, {wanted} requested, limit {most}")]
    Owner { what: &'static str, wanted: u64, held: u64, most: u64, who: Who },
    #[error("not enough disk: {free_mib} MiB free, {kept_mib} MiB reserved")]
    Disk { free_mib: u64, kept_mib: u64 },
    #[error("not enough disk: {wanted_mib} MiB requested, {free_mib} MiB free, {kept_mib} MiB reserved")]
    Room { wanted_mib: u64, free_mib: u64, kept_mib: u64 },
}

const MIB: u64 = 1 << 20;

/// Decides. Children share their memory with their parent and only pay for what they write, which cannot be known before;
/// one that would not fit if it wrote to all of its memory is refused, since no later refusal could help it.
pub fn admit(wanted: AdmissionRequest, present: Present, limits: Limits) -> Result<(), Refusal> {
    if present.sandboxes.saturating_add(wanted.sandboxes) > limits.sandboxes {
        return Err(Refusal::Sandboxes {
            wanted: wanted.sandboxes,
            present: present.sandboxes,
            most: limits.sandboxes,
        });
    }
    let available = present.available_memory_bytes.min(limits.memory_bytes);
    if wanted.memory_bytes > available {
        let (wanted_mib, available_mib) = (wanted.memory_bytes / MIB, available / MIB);
        return Err(Refusal::Memory { wanted_mib, available_mib });
    }
    if present.free_disk_bytes < limits.free_disk_bytes {
        let (free_mib, kept_mib) = (present.free_disk_bytes / MIB, limits.free_disk_bytes / MIB);
        return Err(Refusal::Disk { free_mib, kept_mib });
    }
    Ok(())
}

/// Decides about a branch, which keeps memory that only its sandbox has now. If the sandbox writes to all of that again, as much
/// more is used. What earlier branches keep of the same sandbox is used already: its memory is its own again only after it has
/// written to it.
pub fn admit_branch(frozen_bytes: u64, available_memory_bytes: u64) -> Result<(), Refusal> {
    if frozen_bytes > available_memory_bytes {
        let (wanted_mib, available_mib) = (frozen_bytes.div_ceil(MIB), available_memory_bytes / MIB);
        return Err(Refusal::Branch { wanted_mib, available_mib });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits =
        Limits { sandboxes: 10, memory_bytes: 100 * MIB, zygote_bytes: 0, free_disk_bytes: 5 * MIB };
    const PRESENT: Present =
        Present { sandboxes: 4, available_memory_bytes: 80 * MIB, free_disk_bytes: 6 * MIB };
    const WANTED: AdmissionRequest = AdmissionRequest { sandboxes: 6, memory_bytes: 80 * MIB };

    #[test]
    fn each_limit_is_exact_and_has_its_own_refusal() {
        assert_eq!(admit(WANTED, PRESENT, LIMITS), Ok(()));
        let more = AdmissionRequest { sandboxes: 7, ..WANTED };
        assert_eq!(admit(more, PRESENT, LIMITS), Err(Refusal::Sandboxes { wanted: 7, present: 4, most: 10 }));
        let larger = AdmissionRequest { memory_bytes: 81 * MIB, ..WANTED };
        let refused = Err(Refusal::Memory { wanted_mib: 81, available_mib: 80 });
        assert_eq!(admit(larger, PRESENT, LIMITS), refused);
        let small = Limits { memory_bytes: 50 * MIB, ..LIMITS };
        let refused = Err(Refusal::Memory { wanted_mib: 80, available_mib: 50 });
        assert_eq!(admit(WANTED, PRESENT, small), refused);
        let full = Present { free_disk_bytes: 4 * MIB, ..PRESENT };
        assert_eq!(admit(WANTED, full, LIMITS), Err(Refusal::Disk { free_mib: 4, kept_mib: 5 }));
        let huge = AdmissionRequest { sandboxes: u64::MAX, ..WANTED };
        assert!(admit(huge, PRESENT, LIMITS).is_err());
    }

    #[test]
    fn a_branch_needs_memory_for_what_its_sandbox_writes_again() {
        assert_eq!(admit_branch(79 * MIB, 79 * MIB), Ok(()));
        let refused = Err(Refusal::Branch { wanted_mib: 80, available_mib: 79 });
        assert_eq!(admit_branch(79 * MIB + 1, 79 * MIB), refused);
    }
}
