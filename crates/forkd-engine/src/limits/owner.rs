//! Whose sandboxes and snapshots they are, and how much each owner and each project may have at once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::admission::Refusal;
use crate::project::Project;
use crate::record::{Shape, ZygoteRecord};
use crate::sandbox::{SandboxState, SandboxView};
use crate::snapshot::SnapshotView;

/// Who asks for sandboxes and snapshots, and for which project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    pub allowance: Allowance,
    /// What is made belongs to it.
    pub project: Project,
    /// What all of the project's owners may have together.
    pub project_allowance: Allowance,
}

/// What an owner or a project may have at once. What is not said is as much as the host gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Guests that make snapshots and images count as well.
    pub sandboxes: Option<u64>,
    /// Of their guests, and what their branches keep, together.
    pub memory_bytes: Option<u64>,
    pub vcpus: Option<u64>,
    /// In memory or on disk; branches are snapshots.
    pub snapshots: Option<u64>,
    /// What their snapshots take on disk, without what they share with those they are based on.
    pub snapshot_bytes: Option<u64>,
}

/// Whose room it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    Owner,
    Project,
}

impl fmt::Display for Who {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Who::Owner => "token",
            Who::Project => "project",
        })
    }
}

/// The room of an owner, or of a project.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account<'a> {
    who: Who,
    name: &'a str,
    allowance: Allowance,
}

impl Owner {
    pub(crate) fn account(&self, who: Who) -> Account<'_> {
        let (name, allowance) = match who {
            Who::Owner => (self.name.as_str(), self.allowance),
            Who::Project => (self.project.as_str(), self.project_allowance),
        };
        Account { who, name, allowance }
    }

    pub(crate) fn accounts(&self) -> [Account<'_>; 2] {
        [self.account(Who::Owner), self.account(Who::Project)]
    }
}

impl Account<'_> {
    pub fn has_memory_limit(&self) -> bool {
        self.allowance.memory_bytes.is_some()
    }

    pub fn has_disk_limit(&self) -> bool {
        self.allowance.snapshot_bytes.is_some()
    }

    /// Whether what a snapshot takes on disk counts here.
    pub fn stores(&self, snapshot: &ZygoteRecord) -> bool {
        self.has(snapshot.maker.as_deref(), &snapshot.project)
    }

    /// Whether the memory that a branch keeps counts here.
    pub fn keeps(&self, branch: &ZygoteRecord) -> bool {
        match self.who {
            Who::Owner => branch.owner.as_deref() == Some(self.name),
            Who::Project => branch.owner.is_some() && branch.project.as_str() == self.name,
        }
    }

    fn has(&self, owner: Option<&str>, project: &Project) -> bool {
        match self.who {
            Who::Owner => owner == Some(self.name),
            Who::Project => project.as_str() == self.name,
        }
    }

    fn key(&self) -> (Who, String) {
        (self.who, self.name.to_owned())
    }

    /// What there is of it.
    fn held(&self, sandboxes: &[SandboxView], snapshots: &[SnapshotView]) -> Holding {
        let alive =
            sandboxes.iter().filter(|view| view.state != SandboxState::Ended).map(|view| &view.record);
        let own = alive.filter(|record| self.has(record.owner.as_deref(), &record.project));
        let held = own.fold(Holding::default(), |held, record| held.plus(Holding::of(&record.shape)));
        let made = snapshots.iter().filter(|view| self.stores(&view.record)).count();
        Holding { snapshots: made as u64, ..held }
    }
}

/// What an owner has, or asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub sandboxes: u64,
    pub memory_bytes: u64,
    pub vcpus: u64,
    pub snapshots: u64,
    pub snapshot_bytes: u64,
}

impl Holding {
    /// A guest.
    pub fn of(shape: &Shape) -> Holding {
        let (memory_bytes, vcpus) = (shape.memory_bytes, shape.vcpus.into());
        Holding { sandboxes: 1, memory_bytes, vcpus, ..Holding::default() }
    }

    /// A snapshot that takes so much on disk. The size of an unwritten one is unknown: there has to be some room.
    pub fn snapshot(bytes: Option<u64>) -> Holding {
        Holding { snapshots: 1, snapshot_bytes: bytes.unwrap_or(1), ..Holding::default() }
    }

    pub fn times(self, count: u32) -> Holding {
        self.with(
            Holding {
                sandboxes: count.into(),
                memory_bytes: count.into(),
                vcpus: count.into(),
                snapshots: count.into(),
                snapshot_bytes: count.into(),
            },
            u64::saturating_mul,
        )
    }

    pub fn plus(self, other: Holding) -> Holding {
        self.with(other, u64::saturating_add)
    }

    fn minus(self, other: Holding) -> Holding {
        self.with(other, u64::saturating_sub)
    }

    fn with(self, other: Holding, operation: fn(u64, u64) -> u64) -> Holding {
        Holding {
            sandboxes: operation(self.sandboxes, other.sandboxes),
            memory_bytes: operation(self.memory_bytes, other.memory_bytes),
            vcpus: operation(self.vcpus, other.vcpus),
            snapshots: operation(self.snapshots, other.snapshots),
            snapshot_bytes: operation(self.snapshot_bytes, other.snapshot_bytes),
        }
    }
}

/// What is being made for whom: two requests at once must not each take the last room.
pub(crate) type Claims = Arc<Mutex<BTreeMap<(Who, String), Holding>>>;

/// Room that is taken for what is being made. Given back with this value; what was made is counted separately by then.
#[derive(Debug)]
pub struct Claim {
    claims: Claims,
    accounts: [(Who, String); 2],
    wanted: Holding,
}

/// What there is already.
pub(crate) struct Present {
    pub sandboxes: Vec<SandboxView>,
    pub snapshots: Vec<SnapshotView>,
}

/// The part of an allowance that branches count against.
pub(crate) const MEMORY: &str = "MiB of memory";

/// Takes room for what an owner asks for beside what it and its project have. `measured` is what only the host knows: the memory that
/// the branches of each account keep, and what its snapshots take on disk.
pub(crate) fn claim(
    claims: &Claims,
    owner: &Owner,
    present: impl FnOnce() -> Present,
    measured: [Holding; 2],
    wanted: Holding,
) -> Result<Claim, Refusal> {
    let mut making = claims.lock().unwrap_or_else(PoisonError::into_inner);
    // Under the lock: what was being made is still claimed, or there.
    let Present { sandboxes, snapshots } = present();
    for (account, measured) in owner.accounts().into_iter().zip(measured) {
        let claimed = making.get(&account.key()).copied().unwrap_or_default();
        allow(&account, account.held(&sandboxes, &snapshots).plus(claimed).plus(measured), wanted)?;
    }
    let accounts = owner.accounts().map(|account| account.key());
    for account in &accounts {
        let claimed = making.entry(account.clone()).or_default();
        *claimed = claimed.plus(wanted);
    }
    Ok(Claim { claims: Arc::clone(claims), accounts, wanted })
}

/// Decides.
fn allow(account: &Account<'_>, held: Holding, wanted: Holding) -> Result<(), Refusal> {
    let Allowance { sandboxes, memory_bytes, vcpus, snapshots, snapshot_bytes } = account.allowance;
    // Each with its unit: bytes are compared, and MiB shown.
    for (what, unit, most, held, wanted) in [
        ("sandboxes", 1, sandboxes, held.sandboxes, wanted.sandboxes),
        (MEMORY, 1 << 20, memory_bytes, held.memory_bytes, wanted.memory_bytes),
        ("vCPUs", 1, vcpus, held.vcpus, wanted.vcpus),
        ("snapshots", 1, snapshots, held.snapshots, wanted.snapshots),
        ("MiB of snapshots on disk", 1 << 20, snapshot_bytes, held.snapshot_bytes, wanted.snapshot_bytes),
    ] {
        if let Some(most) = most
            && wanted > 0
            && held.saturating_add(wanted) > most
        {
            let (wanted, held, most) = (wanted.div_ceil(unit), held.div_ceil(unit), most / unit);
            return Err(Refusal::Owner { what, wanted, held, most, who: account.who });
        }
    }
    Ok(())
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut making = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        for account in &self.accounts {
            if let Some(claimed) = making.remove(account) {
                let left = claimed.minus(self.wanted);
                if left != Holding::default() {
                    making.insert(account.clone(), left);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const NO_FROZEN: [Holding; 2] = [of_memory(0), of_memory(0)];

    const fn of_memory(memory_bytes: u64) -> Holding {
        Holding { sandboxes: 0, memory_bytes, vcpus: 0, snapshots: 0, snapshot_bytes: 0 }
    }

    fn holding(sandboxes: u64) -> Holding {
        let bytes = sandboxes * 64 * MIB;
        Holding {
            sandboxes,
            memory_bytes: bytes,
            vcpus: sandboxes * 2,
            snapshots: sandboxes,
            snapshot_bytes: bytes,
        }
    }

    fn nothing() -> Present {
        Present { sandboxes: Vec::new(), snapshots: Vec::new() }
    }

    fn owner(name: &str, allowance: Allowance) -> Owner {
        let project_allowance = Allowance::default();
        Owner { name: name.into(), allowance, project: Project::default(), project_allowance }
    }

    #[test]
    fn each_part_of_an_allowance_is_exact() {
        let allow =
            |allowance, held, wanted| allow(&Account { who: Who::Owner, name: "a", allowance }, held, wanted);
        assert_eq!(allow(Allowance::default(), holding(1000), holding(1000)), Ok(()));
        let most = Allowance {
            sandboxes: Some(5),
            memory_bytes: Some(320 * MIB),
            vcpus: Some(10),
            snapshots: Some(5),
            snapshot_bytes: Some(320 * MIB),
        };
        assert_eq!(allow(most, holding(3), holding(2)), Ok(()));
        for (allowance, what) in [
            (Allowance { sandboxes: Some(4), ..most }, "sandboxes"),
            (Allowance { memory_bytes: Some(319 * MIB), ..most }, "MiB of memory"),
            (Allowance { vcpus: Some(9), ..most }, "vCPUs"),
            (Allowance { snapshots: Some(4), ..most }, "snapshots"),
            (Allowance { snapshot_bytes: Some(319 * MIB), ..most }, "MiB of snapshots on disk"),
        ] {
            let refused = allow(allowance, holding(3), holding(2));
            assert!(matches!(refused, Err(Refusal::Owner { what: named, .. }) if named == what), "{what}");
        }
        assert!(allow(most, holding(1 << 30), holding(1)).is_err());
        // An owner above a lowered limit may still have what is not limited.
        let snapshot = Holding { snapshots: 1, ..Holding::default() };
        let lowered = Allowance { sandboxes: Some(1), ..Allowance::default() };
        assert_eq!(allow(lowered, holding(3), snapshot), Ok(()));
    }

    #[test]
    fn what_is_being_made_counts_until_it_is_made_or_given_up() {
        let claims = Claims::default();
        let three = owner("token:a", Allowance { sandboxes: Some(3), ..Allowance::default() });
        let first = claim(&claims, &three, nothing, NO_FROZEN, holding(2)).unwrap();
        assert!(claim(&claims, &three, nothing, NO_FROZEN, holding(2)).is_err());
        let other = Owner { name: "token:b".into(), ..three.clone() };
        let theirs = claim(&claims, &other, nothing, NO_FROZEN, holding(3)).unwrap();
        let second = claim(&claims, &three, nothing, NO_FROZEN, holding(1)).unwrap();
        drop(first);
        drop(second);
        drop(theirs);
        assert!(claims.lock().unwrap().is_empty());
        let frozen = owner("token:a", Allowance { memory_bytes: Some(128 * MIB), ..Allowance::default() });
        assert!(claim(&claims, &frozen, nothing, [of_memory(64 * MIB), of_memory(0)], holding(1)).is_ok());
        let refused = claim(&claims, &frozen, nothing, [of_memory(65 * MIB), of_memory(0)], holding(1));
        assert!(matches!(refused, Err(Refusal::Owner { what: MEMORY, held: 65, .. })), "{refused:?}");
        assert!(claim(&claims, &three, nothing, NO_FROZEN, holding(3)).is_ok());
    }

    #[test]
    fn a_project_s_owners_share_what_it_may_have() {
        let claims = Claims::default();
        let of = |name: &str, project: &str| Owner {
            project: project.parse().unwrap(),
            project_allowance: Allowance { sandboxes: Some(3), ..Allowance::default() },
            ..owner(name, Allowance::default())
        };
        let first = claim(&claims, &of("token:a", "one"), nothing, NO_FROZEN, holding(2)).unwrap();
        let refused = claim(&claims, &of("token:b", "one"), nothing, NO_FROZEN, holding(2)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "limit of the project exceeded for sandboxes: 2 in use, 2 requested, limit 3"
        );
        assert!(claim(&claims, &of("token:b", "two"), nothing, NO_FROZEN, holding(3)).is_ok());
        drop(first);
        assert!(claim(&claims, &of("token:b", "one"), nothing, NO_FROZEN, holding(3)).is_ok());
        assert!(claims.lock().unwrap().is_empty());
    }
}
