//! Whose sandboxes they are, and how much each owner may have at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::admission::Refusal;
use super::{SandboxState, SandboxView};

/// Who asks for sandboxes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    pub allowance: Allowance,
}

/// What an owner may have at once. What is not said is as much as the host gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowance {
    pub sandboxes: Option<u64>,
    /// Of their guests, and what their branches keep, together.
    pub memory_bytes: Option<u64>,
    pub vcpus: Option<u64>,
}

/// What an owner has, or asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Holding {
    pub sandboxes: u64,
    pub memory_bytes: u64,
    pub vcpus: u64,
}

impl Holding {
    fn plus(self, other: Holding) -> Holding {
        Holding {
            sandboxes: self.sandboxes.saturating_add(other.sandboxes),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            vcpus: self.vcpus.saturating_add(other.vcpus),
        }
    }

    fn minus(self, other: Holding) -> Holding {
        Holding {
            sandboxes: self.sandboxes.saturating_sub(other.sandboxes),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            vcpus: self.vcpus.saturating_sub(other.vcpus),
        }
    }
}

/// What is being made for whom: two requests at once must not each take what is left for one.
pub(super) type Claims = Arc<Mutex<BTreeMap<String, Holding>>>;

/// Room that is taken for what is being made. Given back with this value; what was made is counted by itself by then.
#[derive(Debug)]
pub(super) struct Claim {
    claims: Claims,
    owner: String,
    wanted: Holding,
}

/// The part of an allowance that branches count against.
pub(super) const MEMORY: &str = "MiB of memory";

/// Takes room for what an owner asks for beside what it has: sandboxes, and memory that its branches keep.
pub(super) fn claim(
    claims: &Claims,
    owner: &Owner,
    present: &[SandboxView],
    frozen_bytes: u64,
    wanted: Holding,
) -> Result<Claim, Refusal> {
    let mut making = claims.lock().unwrap_or_else(PoisonError::into_inner);
    let claimed = making.get(&owner.name).copied().unwrap_or_default();
    let held = present.iter().filter(|view| view.record.owner.as_ref() == Some(&owner.name));
    let held = held.filter(|view| view.state != SandboxState::Ended).map(|view| Holding {
        sandboxes: 1,
        memory_bytes: view.record.shape.memory_bytes,
        vcpus: view.record.shape.vcpus.into(),
    });
    let frozen = Holding { memory_bytes: frozen_bytes, ..Holding::default() };
    let held = held.fold(claimed.plus(frozen), Holding::plus);
    allow(owner.allowance, held, wanted)?;
    making.insert(owner.name.clone(), claimed.plus(wanted));
    Ok(Claim { claims: Arc::clone(claims), owner: owner.name.clone(), wanted })
}

/// Decides.
fn allow(allowance: Allowance, held: Holding, wanted: Holding) -> Result<(), Refusal> {
    let Allowance { sandboxes, memory_bytes, vcpus } = allowance;
    // Each with its unit: memory is compared to the byte, and shown in MiB.
    for (what, unit, most, held, wanted) in [
        ("sandboxes", 1, sandboxes, held.sandboxes, wanted.sandboxes),
        (MEMORY, 1 << 20, memory_bytes, held.memory_bytes, wanted.memory_bytes),
        ("vCPUs", 1, vcpus, held.vcpus, wanted.vcpus),
    ] {
        if let Some(most) = most
            && held.saturating_add(wanted) > most
        {
            let (wanted, held, most) = (wanted.div_ceil(unit), held.div_ceil(unit), most / unit);
            return Err(Refusal::Owner { what, wanted, held, most });
        }
    }
    Ok(())
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut making = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claimed) = making.remove(&self.owner) {
            let left = claimed.minus(self.wanted);
            if left != Holding::default() {
                making.insert(self.owner.clone(), left);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn holding(sandboxes: u64) -> Holding {
        Holding { sandboxes, memory_bytes: sandboxes * 64 * MIB, vcpus: sandboxes * 2 }
    }

    #[test]
    fn each_part_of_an_allowance_is_exact() {
        assert_eq!(allow(Allowance::default(), holding(1000), holding(1000)), Ok(()));
        let most = Allowance { sandboxes: Some(5), memory_bytes: Some(320 * MIB), vcpus: Some(10) };
        assert_eq!(allow(most, holding(3), holding(2)), Ok(()));
        for (allowance, what) in [
            (Allowance { sandboxes: Some(4), ..most }, "sandboxes"),
            (Allowance { memory_bytes: Some(319 * MIB), ..most }, "MiB of memory"),
            (Allowance { vcpus: Some(9), ..most }, "vCPUs"),
        ] {
            let refused = allow(allowance, holding(3), holding(2));
            assert!(matches!(refused, Err(Refusal::Owner { what: named, .. }) if named == what), "{what}");
        }
        assert!(allow(most, holding(1 << 30), holding(1)).is_err());
    }

    #[test]
    fn what_is_being_made_counts_until_it_is_made_or_given_up() {
        let claims = Claims::default();
        let allowance = Allowance { sandboxes: Some(3), ..Allowance::default() };
        let owner = Owner { name: "token:a".into(), allowance };
        let first = claim(&claims, &owner, &[], 0, holding(2)).unwrap();
        assert!(claim(&claims, &owner, &[], 0, holding(2)).is_err());
        let other = Owner { name: "token:b".into(), ..owner.clone() };
        let theirs = claim(&claims, &other, &[], 0, holding(3)).unwrap();
        let second = claim(&claims, &owner, &[], 0, holding(1)).unwrap();
        drop(first);
        drop(second);
        drop(theirs);
        assert!(claims.lock().unwrap().is_empty());
        let allowance = Allowance { memory_bytes: Some(128 * MIB), ..Allowance::default() };
        let frozen = Owner { allowance, ..owner.clone() };
        assert!(claim(&claims, &frozen, &[], 64 * MIB, holding(1)).is_ok());
        let refused = claim(&claims, &frozen, &[], 65 * MIB, holding(1));
        assert!(matches!(refused, Err(Refusal::Owner { what: MEMORY, held: 65, .. })), "{refused:?}");
        assert!(claim(&claims, &owner, &[], 0, holding(3)).is_ok());
    }
}
