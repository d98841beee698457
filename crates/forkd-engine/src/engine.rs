//! The engine: every sandbox and every snapshot, by name.
//!
//! ```text
//!   create ──▶ lease of a snapshot ──▶ Fork × n ──▶ identity ──▶ sandboxes, promised together
//!   branch ──▶ the sandbox' task ────▶ Branch ────▶ a snapshot, live at once, on disk soon
//! ```
//!
//! One task owns each sandbox (`sandbox/mod.rs`) and each snapshot (`snapshot/mod.rs`). Everybody else has a handle: it sends
//! requests, and sees what the owner shows. The registries here only find handles by name, and reserve names.
//!
//! A record is written before a process is made and says `promised: false` until its requester may know of it. A daemon
//! that finds such a record after it was killed removes what it describes: no client knows it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forkd_image::images::ImageStore;
use forkd_net::Dropped;
use forkd_store::{Store, Tag};
use tokio::sync::{Semaphore, broadcast, watch};

use crate::disk::known::KnownLayers;
use crate::disk::merge::BeingMerged;
use crate::disk::project_quota::ProjectQuotas;
use crate::error::EngineError;
use crate::identity::Given;
use crate::ids::SandboxId;
use crate::limits::admission::Limits;
use crate::limits::cgroup::Cgroups;
use crate::limits::owner::Claims;
use crate::limits::room::PromisedBytes;
use crate::network::{Networking, Networks, start as start_networks};
use crate::paths::Paths;
use crate::process::users::{UidRange, Users};
use crate::project::Project;
use crate::record::{SandboxRecord, Unreadable};
use crate::recovery::recover::{Recovered, recover};
use crate::registry::Registry;
use crate::sandbox::leftovers::Clearing;
use crate::sandbox::{SandboxHandle, SandboxState, SandboxView};
use crate::snapshot::names::Names;
use crate::snapshot::once::BeingMade;
use crate::snapshot::travel::partial::Partials;
use crate::snapshot::{SnapshotHandle, SnapshotStatus, SnapshotView};

/// No VM takes longer to answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Events that a slow reader may be behind.
const EVENTS: usize = 1024;

/// A handle to everything. Clones are the same engine.
#[derive(Debug, Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

/// What the engine is made of.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `forkd-vmm`.
    pub program: PathBuf,
    /// The directory of everything: see [`Paths`].
    pub root: PathBuf,
    pub images: ImageStore,
    pub limits: Limits,
    pub networking: Networking,
    /// The cgroup that VM processes are limited in. Without one, only disks are.
    pub cgroup: Option<PathBuf>,
    /// The user ids of VM processes, if this process is root.
    pub users: UidRange,
    /// Whether it is learned which pages children of a snapshot use first, and made use of.
    pub prefault: bool,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) program: PathBuf,
    pub(crate) paths: Paths,
    pub(crate) store: Store,
    pub(crate) images: ImageStore,
    /// What manifests say of layers and images, which takes long to find out.
    pub(crate) known_layers: KnownLayers,
    /// What came of snapshots that have not arrived.
    pub(crate) partials: Partials,
    pub(crate) promised_bytes: Arc<PromisedBytes>,
    pub(crate) limits: Limits,
    pub(crate) networks: Networks,
    pub(crate) cgroups: Option<Cgroups>,
    /// Where the kernel keeps what disks may hold.
    pub(crate) project_quotas: Option<ProjectQuotas>,
    pub(crate) users: Users,
    pub(crate) claims: Claims,
    pub(crate) sandboxes: Registry<SandboxId, SandboxHandle>,
    /// Names of hidden VMs: see `snapshot/prefault.rs`.
    pub(crate) unlisted: Registry<SandboxId, SandboxHandle>,
    pub(crate) snapshots: Registry<Tag, SnapshotHandle>,
    /// Further names of snapshots.
    pub(crate) names: Names,
    pub(crate) events: broadcast::Sender<ProjectEvent>,
    /// Turns for sandboxes that are forked and take their identities. All of a thousand at once would share the host's CPUs until
    /// none of them has answered in time.
    pub(crate) coming_up: Arc<Semaphore>,
    /// Turns for sandboxes whose files are made.
    pub(crate) preparing: Semaphore,
    pub(crate) clearing: Clearing,
    /// The turn for the one snapshot that is learned about.
    pub(crate) learning: Semaphore,
    /// Turns for snapshots that are written while no request waits for them.
    pub(crate) writing: Semaphore,
    pub(crate) prefault: bool,
    /// How often snapshots were used.
    pub(crate) uses: AtomicU64,
    /// What could not be read when it was last looked at.
    pub(crate) unreadable: Mutex<Vec<Unreadable>>,
    pub(crate) being_merged: BeingMerged,
    pub(crate) being_made: BeingMade,
    /// Whether the daemon is about to end.
    pub(crate) stopping: watch::Sender<bool>,
}

/// An event of a project's sandbox or snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectEvent {
    pub project: Project,
    pub what: EngineEvent,
}

/// An event. The current state of a sandbox or snapshot is asked of its handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineEvent {
    Sandbox(SandboxId, SandboxState),
    SandboxRemoved(SandboxId),
    Panicked(SandboxId),
    OutOfDisk(SandboxId, u64),
    /// Code was running in these interpreter contexts when the sandbox got its identity.
    Busy(SandboxId, Vec<String>),
    RolledBack(SandboxId, Tag),
    /// A packet or a name of a sandbox was refused. Only some of these are reported.
    Dropped(SandboxId, Dropped),
    Snapshot(Tag, SnapshotStatus),
    SnapshotRemoved(Tag),
    /// A snapshot was loaded from disk: it has a process again.
    Loaded(Tag),
    /// A snapshot is on disk only.
    Evicted(Tag),
}

impl Engine {
    /// Adopts what earlier daemons left, and removes what was not promised to a client.
    pub async fn start(settings: Settings) -> Result<(Engine, Recovered), EngineError> {
        let Settings { program, root, images, limits, networking, cgroup, users, prefault } = settings;
        let paths = Paths::new(&root)?;
        let cgroups = cgroup.map(|cgroup| Cgroups::prepare(&cgroup, &paths.layers())).transpose()?;
        let project_quotas = ProjectQuotas::find(&paths.layers(), users);
        let store = Store::new(paths.snapshots());
        let names = Names::new(paths.names());
        let partials = Partials::new(paths.partial());
        let (events, _) = broadcast::channel(EVENTS);
        let (sandboxes, snapshots) = (Registry::default(), Registry::default());
        let shared = Arc::new(Shared {
            program,
            paths,
            store,
            images,
            known_layers: KnownLayers::default(),
            partials,
            promised_bytes: Arc::default(),
            limits,
            networks: Networks::new(&networking),
            cgroups,
            project_quotas,
            users: Users::new(users),
            claims: Claims::default(),
            sandboxes,
            unlisted: Registry::default(),
            snapshots,
            names,
            events,
            coming_up: Arc::new(Semaphore::new(at_once())),
            preparing: Semaphore::new(at_once()),
            clearing: Clearing::default(),
            learning: Semaphore::new(1),
            writing: Semaphore::new(cpus()),
            prefault,
            uses: AtomicU64::new(0),
            unreadable: Mutex::default(),
            being_merged: BeingMerged::default(),
            being_made: BeingMade::default(),
            stopping: watch::Sender::new(false),
        });
        let mut recovered = recover(&shared).await?;
        recovered.networks = start_networks(&shared, networking).await?;
        Ok((Engine { shared }, recovered))
    }

    pub fn sandbox(&self, id: &str) -> Result<SandboxHandle, EngineError> {
        let unknown = || EngineError::NoSandbox(id.chars().take(80).collect());
        let id: SandboxId = id.parse().map_err(|_| unknown())?;
        self.shared.sandboxes.get(&id).ok_or_else(unknown)
    }

    /// All sandboxes by id.
    pub fn sandboxes(&self) -> Vec<SandboxView> {
        self.shared.sandboxes.all().iter().map(SandboxHandle::view).collect()
    }

    /// A snapshot, by its tag or another of its names.
    pub fn snapshot(&self, tag: &str) -> Result<SnapshotHandle, EngineError> {
        self.shared.snapshot(tag)
    }

    /// All snapshots by tag.
    pub fn snapshots(&self) -> Vec<SnapshotView> {
        self.shared.snapshots.all().iter().map(SnapshotHandle::view).collect()
    }

    /// What happens from now on.
    pub fn events(&self) -> broadcast::Receiver<ProjectEvent> {
        self.shared.events.subscribe()
    }

    /// Whether it is checked that VM processes give up disk layers that were frozen. It cannot be on a file system without leases.
    pub fn checks_layers(&self) -> Result<bool, EngineError> {
        self.shared.knows_writers()
    }

    /// Whether the kernel keeps what disks may hold, by quotas of projects.
    pub fn has_disk_quotas(&self) -> bool {
        self.shared.project_quotas.is_some()
    }

    pub fn root(&self) -> &Path {
        self.shared.paths.root()
    }
}

impl Shared {
    pub(crate) fn snapshot(&self, tag: &str) -> Result<SnapshotHandle, EngineError> {
        let unknown = || EngineError::NoSnapshot(tag.chars().take(80).collect());
        let tag: Tag = tag.parse().map_err(|_| unknown())?;
        let named = || self.names.get(&self.snapshots, &tag);
        self.snapshots.get(&tag).or_else(named).ok_or_else(unknown)
    }

    /// The number of a use that is now.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn uses_so_far(&self) -> u64 {
        self.uses.load(Ordering::Relaxed)
    }

    /// Whether a VM's name is taken, also by one that is still being made, or that is hidden.
    pub(crate) fn has_name(&self, id: &SandboxId) -> bool {
        self.sandboxes.has(id) || self.unlisted.has(id)
    }

    pub(crate) fn tell_of(&self, record: &SandboxRecord, given: Given) {
        if !given.busy.is_empty() {
            self.tell(&record.project, EngineEvent::Busy(record.id.clone(), given.busy));
        }
    }

    pub(crate) fn tell(&self, project: &Project, what: EngineEvent) {
        // There may be no listener.
        let _ = self.events.send(ProjectEvent { project: project.clone(), what });
    }
}

/// More than there are CPUs: a guest, or the kernel, waits now and then, for a disk or a timer.
fn at_once() -> usize {
    4 * cpus()
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

pub(crate) fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
