//! Create: sandboxes of one snapshot, as one operation.
//!
//! ```text
//!   admit ─▶ lease the zygote ─▶ for each: record ─▶ Fork ─▶ runs ─▶ identity ─┐
//!                                                                             ├─▶ all came up: promise them
//!                                                                             └─▶ one did not: end those that did
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use forkd_proto::control::{Command, Descriptor, Event, Fork, Reply};
use forkd_store::Tag;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::task::JoinSet;

use super::admission::{self, Present, Refusal, Wanted};
use super::network::NetworkOrder;
use super::owner::{self, Claim, Holding, Owner};
use super::quota::{WantedLimits, of_sandbox, quota};
use super::registry::Reservation;
use super::sandbox::{self, SandboxHandle, SandboxState, SandboxView};
use super::snapshot::Zygote;
use super::{Engine, EngineError, PATIENCE, Shared, unix_ms};
use crate::descriptors::Named;
use crate::fault;
use crate::identity::{self, Identity};
use crate::ids::SandboxId;
use crate::lasting::{Lasting, LastingError, WithEvents, listen_in};
use crate::places::PlaceError;
use crate::record::{self, DiskRecord, SandboxRecord};
use crate::users::User;

/// What sandboxes are made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Snapshot(String),
    /// It is branched first.
    Sandbox(String),
}

/// What is asked for. The daemon has checked the number.
#[derive(Debug, Clone)]
pub struct NewSandboxes {
    pub source: Source,
    pub count: u32,
    /// Whether those that came up are kept when others did not.
    pub partial: bool,
    pub ttl: Option<Duration>,
    /// Whether they are paused when their time is over, and not ended.
    pub pause_at_expiry: bool,
    pub metadata: BTreeMap<String, String>,
    /// What is kept with each of them, for whoever asks.
    pub about: serde_json::Map<String, serde_json::Value>,
    pub env: BTreeMap<String, String>,
    pub network: NetworkOrder,
    pub limits: WantedLimits,
    /// Who asks, if there is more to know than that they may.
    pub owner: Option<Owner>,
}

/// What came of it.
#[derive(Debug)]
pub struct Created {
    pub sandboxes: Vec<SandboxView>,
    pub failures: Vec<EngineError>,
    /// From the admission until every VM ran, and until every guest was ready.
    pub restored: Duration,
    pub ready: Duration,
    /// How long the sandbox that was branched first stood still.
    pub branch_pause: Option<Duration>,
}

/// A VM that runs, and is nobody's yet. Dropped, it is gone.
struct Forked {
    shared: Arc<Shared>,
    record: SandboxRecord,
    process: Option<WithEvents>,
    name: Option<Reservation<SandboxId, SandboxHandle>>,
}

impl Engine {
    pub async fn create(&self, new: NewSandboxes) -> Result<Created, EngineError> {
        let _claim = self.claim(&new)?;
        let snapshot = match &new.source {
            Source::Snapshot(tag) => self.snapshot(tag)?,
            Source::Sandbox(id) => {
                let sandbox = self.sandbox(id)?;
                // Before there is a branch that nobody has asked for.
                self.admit(&new, &sandbox.view().record.shape, None).await?;
                sandbox.branch(None).await?
            }
        };
        let record = snapshot.view().record;
        self.admit(&new, &record.shape, Some(&record.tag)).await?;
        let branch_pause = match &new.source {
            Source::Snapshot(_) => None,
            Source::Sandbox(_) => record.pause_us.map(Duration::from_micros),
        };
        let begun = Instant::now();
        let zygote = snapshot.lease().await?;
        let forks = self.fork_all(&new, &zygote).await;
        let restored = begun.elapsed();
        fault::place("create.running");
        let (mut up, mut failures) = give_identities(forks, &new).await;
        let ready = begun.elapsed();
        fault::place("create.ready");
        if !failures.is_empty() && (up.is_empty() || !new.partial) {
            return Err(failures.swap_remove(0));
        }
        up.sort_by_key(|forked| forked.record.created_unix_ms);
        let mut sandboxes = Vec::new();
        for forked in up {
            match forked.promise().await {
                Ok(view) => sandboxes.push(view),
                Err(error) => failures.push(error),
            }
        }
        if !failures.is_empty() && !new.partial {
            for view in sandboxes {
                // Somebody may have removed it.
                if let Ok(sandbox) = self.sandbox(view.id().as_str()) {
                    let _ = sandbox.remove().await;
                }
            }
            return Err(failures.swap_remove(0));
        }
        Ok(Created { sandboxes, failures, restored, ready, branch_pause })
    }

    /// Takes the owner's room for them, until they are there or given up.
    fn claim(&self, new: &NewSandboxes) -> Result<Option<Claim>, EngineError> {
        let Some(owner) = &new.owner else { return Ok(None) };
        let shape = match &new.source {
            Source::Snapshot(tag) => self.snapshot(tag)?.view().record.shape,
            Source::Sandbox(id) => self.sandbox(id)?.view().record.shape,
        };
        let count = u64::from(new.count);
        let wanted = Holding {
            sandboxes: count,
            memory_bytes: shape.memory_bytes.saturating_mul(count),
            vcpus: u64::from(shape.vcpus) * count,
        };
        Ok(Some(owner::claim(&self.shared.claims, owner, &self.sandboxes(), wanted)?))
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
            let most = shape.devices.disk.map_or(0, |disk| disk.limit_bytes);
            if wanted > most {
                return Err(EngineError::DiskLimit { wanted_mib: wanted >> 20, most_mib: most >> 20 });
            }
        }
        self.shared.networks.admit(&new.network, &shape.devices)?;
        let wanted = Wanted { sandboxes: new.count.into(), memory_bytes: shape.memory_bytes };
        self.shared.admit(wanted, snapshot).await
    }

    /// Asks for all at once; the zygote takes them one after another and waits for none.
    async fn fork_all(
        &self,
        new: &NewSandboxes,
        zygote: &Arc<Zygote>,
    ) -> Vec<(u32, Result<Forked, EngineError>)> {
        let mut forks = JoinSet::new();
        // Without one, each is promised by itself.
        let group = SandboxId::random().ok();
        for index in 0..new.count {
            let (shared, zygote) = (Arc::clone(&self.shared), Arc::clone(zygote));
            let (new, group) = (new.clone(), group.clone());
            forks.spawn(async move { (index, fork(shared, &zygote, new, group).await) });
        }
        forks.join_all().await
    }
}

impl Shared {
    /// Whether there is room, also if snapshots other than the one that is wanted have to give up their processes for it.
    pub(super) async fn admit(&self, wanted: Wanted, snapshot: Option<&Tag>) -> Result<(), EngineError> {
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

    fn present(&self) -> Result<Present, EngineError> {
        Ok(Present {
            sandboxes: self.sandboxes.len() as u64,
            available_memory_bytes: available_memory(),
            free_disk_bytes: free_disk(&self.places.layers())?,
        })
    }
}

fn available_memory() -> u64 {
    // Where the kernel does not tell, the limit alone decides.
    forkd_host::memory::available().unwrap_or(u64::MAX)
}

fn free_disk(path: &std::path::Path) -> Result<u64, PlaceError> {
    let stat = rustix::fs::statvfs(path).map_err(|errno| PlaceError::at("inspect", path)(errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Forks one VM and waits until it runs.
async fn fork(
    shared: Arc<Shared>,
    zygote: &Zygote,
    new: NewSandboxes,
    group: Option<SandboxId>,
) -> Result<Forked, EngineError> {
    let id = SandboxId::random().map_err(EngineError::io("get random numbers"))?;
    // Ids are random, so a second one of the same name would be a miracle.
    let name = shared.sandboxes.reserve(&id).ok_or(EngineError::Removed)?;
    let directory = shared.places.sandbox(&id);
    fs::create_dir(&directory).map_err(PlaceError::at("create", &directory))?;
    let parent = zygote.record.clone();
    let user = shared.users.of_child(zygote.process.user.as_ref()).map_err(LastingError::from)?;
    let now = unix_ms();
    let record = SandboxRecord {
        id,
        snapshot: parent.tag,
        created_unix_ms: now,
        expires_unix_ms: new
            .ttl
            .map(|ttl| now.saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))),
        metadata: new.metadata,
        about: new.about,
        pauses_at_expiry: new.pause_at_expiry,
        owner: new.owner.map(|owner| owner.name),
        disk: None,
        user: user.as_ref().map(User::record),
        network: None,
        quota: shared.cgroups.is_some().then(|| quota(&parent.shape, &new.limits)),
        shape: parent.shape,
        branches: Vec::new(),
        generation: parent.generation + 1,
        promised: false,
        group,
        rolling_back: None,
    };
    let mut forked = Forked { shared, record, process: None, name: Some(name) };
    if let (Some(disk), Some(bytes)) = (&mut forked.record.shape.devices.disk, new.limits.disk_bytes) {
        disk.limit_bytes = bytes;
    }
    let devices = forked.record.shape.devices.clone();
    let mut named = Named::of_vm(&devices, &directory)?.with(Descriptor::Control, listen_in(&directory)?);
    if devices.disk.is_some() {
        let (top, file) = forked.shared.new_layer()?;
        forked.record.disk = Some(DiskRecord::new(parent.layers, top));
        named = named.with(Descriptor::DiskTop, file);
    }
    let networks = &forked.shared.networks;
    let policy = networks.policy(&new.network, parent.policy.as_ref());
    if let Some((network, tap)) = networks.take(&forked.record.id, &devices, policy).await? {
        forked.record.network = Some(network);
        named = named.with(Descriptor::Tap, tap);
    }
    record::write(&directory, &forked.record)?;
    fault::place("create.written");
    let (named, cgroup) = forked.shared.with_cgroup(named, &forked.record)?;
    let command =
        Command::Fork(Fork { cgroup, successor: false, uid: zygote.uid_for(user.as_ref()), devices });
    let descriptors = named.for_command(&command);
    let answer = zygote.process.control.call(command, &descriptors).await;
    drop(descriptors);
    if answer.is_err() {
        // The zygote may have died between the two.
        Lasting::end_stray(&directory).await;
    }
    let (reply, mut pidfds) = answer?;
    let (Reply::Forked { pid }, Some(pidfd)) = (reply.clone(), pidfds.pop()) else {
        return Err(EngineError::Answer(reply));
    };
    fault::place("create.forked");
    let process = forked.process.insert(Lasting::take(&directory, pid, pidfd)?);
    process.0.user = user;
    match tokio::time::timeout(PATIENCE, process.1.recv()).await {
        Ok(Some(Event::Running)) => Ok(forked),
        Ok(other) => Err(EngineError::Ended(format!("{other:?}"))),
        Err(_) => Err(EngineError::Timeout),
    }
}

/// Gives every guest its identity. A VM without a way into its guest has no agent, and needs none.
async fn give_identities(
    forks: Vec<(u32, Result<Forked, EngineError>)>,
    new: &NewSandboxes,
) -> (Vec<Forked>, Vec<EngineError>) {
    let mut tasks = JoinSet::new();
    let mut failures = Vec::new();
    for (index, forked) in forks {
        match forked {
            Ok(forked) => {
                let env = new.env.clone();
                tasks.spawn(async move {
                    if forked.record.shape.devices.vsock.is_some() {
                        let _turn = forked.shared.identities.acquire().await;
                        give_identity(&forked, index, env).await?;
                    }
                    Ok::<_, EngineError>(forked)
                });
            }
            Err(error) => failures.push(error),
        }
    }
    let mut up = Vec::new();
    for forked in tasks.join_all().await {
        match forked {
            Ok(forked) => up.push(forked),
            Err(error) => failures.push(error),
        }
    }
    (up, failures)
}

async fn give_identity(
    forked: &Forked,
    index: u32,
    env: BTreeMap<String, String>,
) -> Result<(), EngineError> {
    let directory = forked.shared.places.sandbox(&forked.record.id);
    let agent = crate::agent::Agent::new(crate::guest::Guest::new(directory.join(crate::descriptors::VSOCK)));
    let identity = identity_of(&forked.record, index.into(), env)?;
    Ok(identity::give(&agent, &identity, PATIENCE).await?)
}

/// Who a sandbox is, with random numbers that nobody else has.
pub(super) fn identity_of(
    record: &SandboxRecord,
    index: u64,
    env: BTreeMap<String, String>,
) -> Result<Identity, EngineError> {
    let mut random = [0u8; 80];
    getrandom(&mut random, GetRandomFlags::empty())
        .map_err(|errno| EngineError::io("get random numbers")(errno.into()))?;
    let (machine, seed) = random.split_at(16);
    let id = record.id.to_string();
    Ok(Identity {
        generation: record.generation,
        hostname: Some(id.clone()),
        machine_id: Some(machine.iter().map(|byte| format!("{byte:02x}")).collect()),
        id,
        index,
        env,
        access_token: None,
        network: None,
        seed: Some(base64::engine::general_purpose::STANDARD.encode(seed)),
    })
}

impl Forked {
    /// Gives it its owner, and its name to everybody.
    async fn promise(mut self) -> Result<SandboxView, EngineError> {
        let (Some(process), Some(name)) = (self.process.take(), self.name.take()) else {
            return Err(EngineError::Removed);
        };
        let handle = sandbox::own(&self.shared, self.record.clone(), process, SandboxState::Starting);
        match handle.promise().await {
            Ok(view) => {
                fault::place("create.promised");
                name.fill(handle);
                Ok(view)
            }
            Err(error) => {
                // It has ended meanwhile. What is left of it goes.
                let _ = handle.remove().await;
                Err(error)
            }
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if self.name.is_none() {
            return;
        }
        if let Some((process, _)) = &self.process {
            process.kill();
        }
        // What cannot be removed now is removed by the next sweep.
        let directory = self.shared.places.sandbox(&self.record.id);
        let _ = fs::remove_dir_all(&directory);
        self.shared.networks.give_back(&self.record.id, &directory);
        if let Some(disk) = &self.record.disk {
            let _ = fs::remove_file(self.shared.places.layer(&disk.files.top));
        }
        self.shared.leave_later(of_sandbox(&self.record.id));
    }
}
