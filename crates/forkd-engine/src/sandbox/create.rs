//! Create: sandboxes of one snapshot, as one operation.
//!
//! ```text
//!   admit ─▶ take names ─▶ lease the zygote ─▶ each is prepared ─▶ each: Fork ─▶ runs ─▶ identity ─┐
//!                                                                                                  ├─▶ all came up: promise them
//!                                                                                                  └─▶ one did not: end the others
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_proto::agent::account::Account;
use forkd_store::Tag;
use tokio::task::JoinSet;

use crate::blocking::in_place;
use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::fault;
use crate::ids::SandboxId;
use crate::limits::admission::{self, AdmissionRequest, Present, Refusal};
use crate::limits::owner::{self, Claim, Holding, Owner};
use crate::limits::quota::WantedLimits;
use crate::limits::usage::{Usage, files_of, own_layers};
use crate::network::NetworkOrder;
use crate::paths::PathError;
use crate::record;
use crate::sandbox::branch::Branched;
use crate::sandbox::forked::{Forked, Name, Prepared};
use crate::sandbox::laps::{BranchStep, CreateStep, Laps};
use crate::sandbox::lifetime::OnExpiry;
use crate::sandbox::promise::Promise;
use crate::sandbox::{SandboxHandle, SandboxView};
use crate::snapshot::{SnapshotHandle, Zygote};

/// What sandboxes are made of: that very one, not another one which has its name later.
#[derive(Debug, Clone)]
pub enum Source {
    Snapshot(SnapshotHandle),
    /// It is branched first. The branch goes when they are there.
    Sandbox(SandboxHandle),
}

/// What is asked for. The daemon has checked the number.
#[derive(Debug, Clone)]
pub struct NewSandboxes {
    pub source: Source,
    pub count: u32,
    /// Whether those that came up are kept when others did not.
    pub partial: bool,
    pub ttl: Option<Duration>,
    pub on_expiry: OnExpiry,
    /// Whether traffic wakes them when they are paused, for as long as `ttl` says.
    pub wake_on_traffic: bool,
    pub metadata: BTreeMap<String, String>,
    /// Data of the requester, kept with each of them.
    pub about: serde_json::Map<String, serde_json::Value>,
    pub env: BTreeMap<String, String>,
    /// A user that their guests have, unless the snapshot was made with one.
    pub account: Option<Account>,
    pub network: NetworkOrder,
    pub limits: WantedLimits,
    /// Whether what each uses is looked at on the way, which takes time.
    pub counted: bool,
    /// Who asks, if there is more to know than that they may.
    pub owner: Option<Owner>,
}

/// What came of it.
#[derive(Debug)]
pub struct Created {
    pub sandboxes: Vec<SandboxView>,
    /// Where their time went, in the same order.
    pub laps: Vec<Laps>,
    /// What they used on the way, in the order in which they were ready, if that was asked for.
    pub counted: Vec<Counted>,
    pub failures: Vec<EngineError>,
    /// From the admission until the last VM ran, and until every guest was ready.
    pub restored: Duration,
    pub ready: Duration,
    /// Of children of a live branch: how long programs ran in each before it had its identity.
    pub windows: Vec<Duration>,
    /// The pause of the sandbox that was branched first.
    pub branch_pause: Option<Duration>,
    /// Where the time of that branch went.
    pub branch_laps: Option<Laps<BranchStep>>,
}

/// What a sandbox used when its VM ran, and when its guest was ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counted {
    pub running: Usage,
    pub ready: Usage,
}

impl Engine {
    pub async fn create(&self, new: NewSandboxes) -> Result<Created, EngineError> {
        forkd_proto::passes!();
        let _claim = self.claim(&new).await?;
        let sandbox = match &new.source {
            Source::Snapshot(snapshot) => return self.create_from(&new, snapshot).await,
            Source::Sandbox(sandbox) => sandbox,
        };
        // Before there is a branch.
        self.admit(&new, &sandbox.view().record.shape, None).await?;
        let Branched { snapshot: branch, laps } = sandbox.branch_for_copies(new.owner.clone()).await?;
        let created = self.create_from(&new, &branch).await;
        // It was not requested. One that others depend on meanwhile stays, as a branch like any other.
        let _ = self.remove_snapshot(branch.tag().as_str(), false).await;
        let branch_pause = branch.view().record.pause_us.map(Duration::from_micros);
        Ok(Created { branch_pause, branch_laps: Some(laps), ..created? })
    }

    async fn create_from(
        &self,
        new: &NewSandboxes,
        snapshot: &SnapshotHandle,
    ) -> Result<Created, EngineError> {
        let record = snapshot.view().record;
        self.admit(new, &record.shape, Some(&record.tag)).await?;
        let names = self.shared.reserve(new.count)?;
        let begun = Instant::now();
        let zygote = snapshot.lease().await?;
        // Networks for the next ones are made when these are there.
        let hold = self.shared.networks.hold();
        let group = SandboxId::random().map_err(EngineError::io("get random numbers"))?;
        let Made { mut up, mut failures, windows, counted } =
            self.fork_all(new, &zygote, names, &group, begun).await;
        drop(hold);
        let ready = begun.elapsed();
        let running = up.iter().filter_map(|forked| forked.laps.end_of(CreateStep::Running)).max();
        let restored = running.map_or(ready, |running| running.duration_since(begun));
        fault::place("create.ready");
        if !failures.is_empty() && (up.is_empty() || !new.partial) {
            return Err(failures.swap_remove(0));
        }
        up.sort_by_key(|forked| forked.record.created_unix_ms);
        let (mut sandboxes, mut laps) = (Vec::new(), Vec::new());
        let promise = Promise::make(&self.shared.paths, &group)?;
        for forked in up {
            match forked.promise(&promise).await {
                Ok((view, its_laps)) => {
                    sandboxes.push(view);
                    laps.push(its_laps);
                }
                Err(error) => failures.push(error),
            }
        }
        if !failures.is_empty() && !new.partial {
            for view in sandboxes {
                // It may have been removed.
                if let Ok(sandbox) = self.sandbox(view.id().as_str()) {
                    let _ = sandbox.remove().await;
                }
            }
            promise.leave();
            return Err(failures.swap_remove(0));
        }
        // If all of them have been removed already.
        promise.leave();
        let (branch_pause, branch_laps) = (None, None);
        Ok(Created {
            sandboxes,
            laps,
            counted,
            failures,
            restored,
            ready,
            windows,
            branch_pause,
            branch_laps,
        })
    }

    /// Takes the owner's room for them, until they are there or given up.
    async fn claim(&self, new: &NewSandboxes) -> Result<Option<Claim>, EngineError> {
        let Some(owner) = &new.owner else { return Ok(None) };
        let shape = match &new.source {
            Source::Snapshot(snapshot) => snapshot.view().record.shape,
            Source::Sandbox(sandbox) => sandbox.view().record.shape,
        };
        Ok(Some(self.shared.claim(owner, Holding::of(&shape).times(new.count)).await?))
    }

    async fn admit(
        &self,
        new: &NewSandboxes,
        shape: &record::Shape,
        snapshot: Option<&Tag>,
    ) -> Result<(), EngineError> {
        if self.shared.cgroups.is_none() && new.limits.need_cgroup() {
            return Err(EngineError::NoCgroups);
        }
        if let Some(wanted) = new.limits.disk_bytes {
            let most = shape.devices.root_disk().map_or(0, |disk| disk.limit_bytes);
            if wanted > most {
                return Err(EngineError::DiskLimit { wanted_mib: wanted >> 20, most_mib: most >> 20 });
            }
        }
        self.shared.networks.admit(&new.network, &shape.devices)?;
        let wanted = AdmissionRequest { sandboxes: new.count.into(), memory_bytes: shape.memory_bytes };
        self.shared.admit(wanted, snapshot).await
    }

    /// First everything that VMs need, so that making it does not compete with those that run already, and none has run in vain;
    /// then a few at a time: the zygote takes them one after another and waits for none, and each gets its identity as soon as it runs.
    async fn fork_all(
        &self,
        new: &NewSandboxes,
        zygote: &Arc<Zygote>,
        names: Vec<Name>,
        group: &SandboxId,
        begun: Instant,
    ) -> Made {
        let mut preparing = JoinSet::new();
        for (index, name) in (0..).zip(names) {
            let (shared, zygote) = (Arc::clone(&self.shared), Arc::clone(zygote));
            let (new, group, laps) = (new.clone(), Some(group.clone()), Laps::since(begun));
            preparing
                .spawn(async move { (index, Prepared::make(shared, &zygote, new, group, name, laps).await) });
        }
        let mut forks = JoinSet::new();
        let mut made = Made::default();
        let prepared = preparing.join_all().await;
        let doomed = !new.partial && prepared.iter().any(|(_, prepared)| prepared.is_err());
        for (index, prepared) in prepared {
            match prepared {
                Ok(prepared) if !doomed => {
                    forks.spawn(bring_up(prepared, Arc::clone(zygote), index, new.clone()));
                }
                Ok(_) => {}
                Err(error) => made.failures.push(error),
            }
        }
        for up in forks.join_all().await {
            match up {
                Ok(Up { forked, window, counted }) => {
                    made.up.push(forked);
                    made.windows.extend(window);
                    made.counted.extend(counted);
                }
                Err(error) => made.failures.push(error),
            }
        }
        made
    }
}

/// One that has its identity.
struct Up {
    forked: Forked,
    window: Option<Duration>,
    counted: Option<Counted>,
}

/// What came of all of them.
#[derive(Default)]
struct Made {
    up: Vec<Forked>,
    failures: Vec<EngineError>,
    windows: Vec<Duration>,
    counted: Vec<Counted>,
}

/// Forks one, and gives its guest an identity. A VM without a way into its guest has no agent, and needs none.
async fn bring_up(
    mut prepared: Prepared,
    zygote: Arc<Zygote>,
    index: u32,
    new: NewSandboxes,
) -> Result<Up, EngineError> {
    let _turn = prepared.turn().await;
    let mut forked = prepared.start(&zygote).await?;
    fault::place("create.running");
    let usage = async |forked: &Forked| match new.counted {
        true => forked.usage().await.map(Some),
        false => Ok(None),
    };
    let running = usage(&forked).await?;
    let mut window = None;
    if forked.record.shape.devices.vsock.is_some() {
        window = forked.give_identity(index, new.env, new.account).await?;
    }
    let ready = usage(&forked).await?;
    let counted = running.zip(ready).map(|(running, ready)| Counted { running, ready });
    Ok(Up { forked, window, counted })
}

impl Shared {
    /// Takes the names of so many sandboxes, which is what counts: two who ask at once do not both get the last room.
    fn reserve(&self, count: u32) -> Result<Vec<Name>, EngineError> {
        let ids = (0..count).map(|_| SandboxId::random());
        let ids = ids.collect::<Result<Vec<_>, _>>().map_err(EngineError::io("get random numbers"))?;
        let most = self.limits.sandboxes;
        let full = |present| Refusal::Sandboxes { wanted: count.into(), present, most };
        Ok(self.sandboxes.reserve_all(ids, most).map_err(full)?)
    }

    /// Whether there is room, also if snapshots other than the one that is wanted have to give up their processes for it.
    pub(crate) async fn admit(
        &self,
        wanted: AdmissionRequest,
        snapshot: Option<&Tag>,
    ) -> Result<(), EngineError> {
        let present = self.present()?;
        let refused = match admission::admit(wanted, present, self.limits) {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        let missing = wanted.memory_bytes.saturating_sub(present.available_memory_bytes);
        let could_help =
            matches!(refused, Refusal::Memory { .. }) && wanted.memory_bytes <= self.limits.memory_bytes;
        if !could_help || !self.make_room(missing, snapshot).await {
            return Err(refused.into());
        }
        Ok(admission::admit(wanted, self.present()?, self.limits)?)
    }

    /// Whether there is room for a branch that keeps so much memory, in the host and in what its owner may have. It is taken
    /// until the branch is there or given up. One that is not kept does not count among its owner's snapshots.
    pub(crate) async fn admit_branch(
        &self,
        owner: Option<&Owner>,
        frozen_bytes: u64,
        kept: bool,
    ) -> Result<Option<Claim>, EngineError> {
        let snapshot = if kept { Holding::snapshot(None) } else { Holding::default() };
        let wanted = Holding { memory_bytes: frozen_bytes, ..snapshot };
        let claim = match owner {
            Some(owner) => Some(self.claim(owner, wanted).await?),
            None => None,
        };
        let missing = frozen_bytes.saturating_sub(available_memory());
        if let Err(refused) = admission::admit_branch(frozen_bytes, available_memory()) {
            if !self.make_room(missing, None).await {
                return Err(refused.into());
            }
            admission::admit_branch(frozen_bytes, available_memory())?;
        }
        Ok(claim)
    }

    /// Takes room of an owner's and its project's for what is being made. Branches that are on disk give up their processes for
    /// it.
    pub(crate) async fn claim(&self, owner: &Owner, wanted: Holding) -> Result<Claim, EngineError> {
        let claim = |measured| owner::claim(&self.claims, owner, || self.held(), measured, wanted);
        match claim(self.measure(owner).await) {
            Err(Refusal::Owner { what: owner::MEMORY, who, .. })
                if self.evict_branches_of(&owner.account(who)).await =>
            {
                Ok(claim(self.measure(owner).await)?)
            }
            claimed => Ok(claimed?),
        }
    }

    fn held(&self) -> owner::Present {
        owner::Present {
            sandboxes: self.sandboxes.all().iter().map(SandboxHandle::view).collect(),
            snapshots: self.snapshots.all().iter().map(SnapshotHandle::view).collect(),
        }
    }

    /// What the branches of an owner's accounts keep in memory, and its snapshots on disk. Processes and files are not looked at where
    /// they have no limit.
    async fn measure(&self, owner: &Owner) -> [Holding; 2] {
        let mut measured = [Holding::default(), Holding::default()];
        for (measured, account) in measured.iter_mut().zip(owner.accounts()) {
            if account.has_memory_limit() {
                measured.memory_bytes = self.frozen_memory_of(&account).await;
            }
            if account.has_disk_limit() {
                measured.snapshot_bytes = in_place(|| self.stored_bytes_of(&account));
            }
        }
        measured
    }

    fn stored_bytes_of(&self, account: &owner::Account<'_>) -> u64 {
        let views = self.snapshots.all().into_iter().map(|handle| handle.view());
        let own = views.filter(|view| account.stores(&view.record));
        own.map(|view| files_of(self, &view.record.tag) + own_layers(self, &view)).sum()
    }

    pub(crate) fn present(&self) -> Result<Present, EngineError> {
        in_place(|| {
            Ok(Present {
                sandboxes: self.sandboxes.len() as u64,
                available_memory_bytes: available_memory(),
                free_disk_bytes: free_disk(&self.paths.layers())?,
            })
        })
    }
}

fn available_memory() -> u64 {
    // Where the kernel does not tell, the limit alone decides.
    forkd_host::memory::available().unwrap_or(u64::MAX)
}

fn free_disk(path: &std::path::Path) -> Result<u64, PathError> {
    let stat = rustix::fs::statvfs(path).map_err(|errno| PathError::at("inspect", path)(errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
