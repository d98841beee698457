//! Derive: a snapshot of another one with more in it.
//!
//! ```text
//!   fork ─▶ commands ─▶ warm-up ─▶ gate closed, programs frozen ─▶ branch ─▶ the sandbox goes ─▶ a live snapshot, a diff
//! ```
//!
//! The sandbox is hidden: it has a name that is not listed, and is promised to no client. So it is removed when the caller disconnects,
//! and after the daemon was killed, by the next one. What comes of it is as clean as a snapshot that was booted: every child begins with taking an
//! identity.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_image::digest::Digest;
use forkd_store::Tag;
use tokio::sync::{mpsc, oneshot};

use crate::bring_up::{self, WarmUp};
use crate::commands;
use crate::engine::{Engine, Shared};
use crate::error::EngineError;
use crate::identity;
use crate::ids::SandboxId;
use crate::limits::admission::AdmissionRequest;
use crate::limits::owner::{Holding, Owner};
use crate::limits::quota::WantedLimits;
use crate::network::NetworkOrder;
use crate::sandbox::branch::{Derived, DerivedRecord};
use crate::sandbox::create::{NewSandboxes, Source};
use crate::sandbox::forked::{Forked, Name, Prepared};
use crate::sandbox::laps::Laps;
use crate::sandbox::lifetime::OnExpiry;
use crate::sandbox::{SandboxHandle, SandboxState};
use crate::snapshot::SnapshotHandle;
use crate::snapshot::make::{QUEUE, Step, Steps, step, warn};

/// How long a warm-up may take, and the closing of the gate: as for one that is booted.
const LIMIT: Duration = Duration::from_secs(300);

/// A snapshot to be made of another one.
#[derive(Debug, Clone)]
pub struct NewDerived {
    pub tag: Tag,
    pub source: SnapshotHandle,
    /// Added to the environment of its programs, and of its children's.
    pub env: BTreeMap<String, String>,
    /// Commands, which a shell runs as root.
    pub run: Vec<String>,
    /// Code to run behind them.
    pub warm_up: Vec<WarmUp>,
    /// If it is built: the digest of what it is made of.
    pub build_key: Option<Digest>,
}

impl NewDerived {
    /// Whether it needs an agent in the guest.
    fn asks_guest(&self) -> bool {
        !(self.env.is_empty() && self.run.is_empty() && self.warm_up.is_empty())
    }
}

impl Engine {
    /// Makes a snapshot of a sandbox of another one in which commands and code have run. It is cancelled if the caller disconnects. While
    /// it is made, the sandbox counts against what its owner may have.
    pub async fn derive(
        &self,
        new: NewDerived,
        owner: Option<&Owner>,
        steps: &Steps,
    ) -> Result<SnapshotHandle, EngineError> {
        let shared = &self.shared;
        let record = new.source.view().record;
        if record.shape.devices.vsock.is_none() && new.asks_guest() {
            return Err(EngineError::WrongState(crate::error::NO_AGENT));
        }
        let name =
            shared.snapshots.reserve(&new.tag).ok_or_else(|| EngineError::NameTaken(new.tag.clone()))?;
        let claim = match owner {
            Some(owner) => {
                Some(shared.claim(owner, Holding::snapshot(None).plus(Holding::of(&record.shape))).await?)
            }
            None => None,
        };
        let network = NetworkOrder::default();
        shared.networks.admit(&network, &record.shape.devices)?;
        let wanted = AdmissionRequest { sandboxes: 0, memory_bytes: record.shape.memory_bytes };
        shared.admit(wanted, Some(&record.tag)).await?;
        step(steps, "fork").await;
        let (source, env) = (new.source.clone(), new.env.clone());
        let forking = fork(Arc::clone(shared), source, env, owner.cloned(), network);
        // Not cancelled: a started fork is completed, or its process would be lost.
        let sandbox = tokio::spawn(forking).await.map_err(|_| EngineError::Stopping)??;
        tokio::select! {
            prepared = prepare(&sandbox.handle, &new, steps) => prepared?,
            reason = sandbox.handle.end() => return Err(EngineError::EndedMeanwhile(reason)),
        }
        step(steps, "freeze").await;
        let about = DerivedRecord {
            maker: owner.map(|owner| owner.name.clone()),
            user_memory: record.has_user_memory(),
            policy: record.policy,
            build_key: new.build_key,
        };
        let derived = Derived { name, about };
        let (told, outcome) = oneshot::channel();
        let engine = self.clone();
        // Neither is this: an abandoned snapshot is removed when it exists.
        tokio::spawn(async move {
            let _claim = claim;
            let branched = sandbox.handle.branch_derived(derived).await;
            sandbox.remove().await;
            if let Err(Ok(unwanted)) = told.send(branched.map(|branched| branched.snapshot)) {
                let _ = engine.remove_snapshot(unwanted.tag().as_str(), false).await;
            }
        });
        outcome.await.map_err(|_| EngineError::Stopping)?
    }
}

/// The commands, the warm-up, and the closing of the gate.
async fn prepare(sandbox: &SandboxHandle, new: &NewDerived, steps: &Steps) -> Result<(), EngineError> {
    if sandbox.view().record.shape.devices.vsock.is_none() {
        return Ok(());
    }
    let agent = sandbox.agent();
    let (printed, mut pieces) = mpsc::channel(QUEUE);
    let work = async move {
        for command in &new.run {
            step(steps, "run").await;
            commands::run(agent, command, Some(&printed)).await.map_err(bring_up::BringUpError::from)?;
        }
        if !new.warm_up.is_empty() {
            step(steps, "warm-up").await;
        }
        bring_up::warm_up(agent, &new.warm_up, LIMIT, Some(&printed)).await?;
        Ok::<_, EngineError>(())
    };
    let telling = async {
        while let Some(piece) = pieces.recv().await {
            let _ = steps.send(Step::Printed(piece)).await;
        }
    };
    tokio::join!(work, telling).0?;
    if let Some(problem) = identity::close(agent, LIMIT).await? {
        warn(steps, &problem).await;
    }
    Ok(())
}

/// A hidden sandbox. It is removed when dropped.
struct Temporary {
    handle: SandboxHandle,
    /// Until it is gone.
    name: Option<Name>,
}

impl Temporary {
    async fn remove(mut self) {
        let name = self.name.take();
        let _ = self.handle.remove().await;
        drop(name);
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let (handle, name) = (self.handle.clone(), self.name.take());
        if name.is_none() {
            return;
        }
        // Without a runtime there is no daemon any more, and the next one removes it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = handle.remove().await;
                drop(name);
            });
        }
    }
}

async fn fork(
    shared: Arc<Shared>,
    source: SnapshotHandle,
    env: BTreeMap<String, String>,
    owner: Option<Owner>,
    network: NetworkOrder,
) -> Result<Temporary, EngineError> {
    let zygote = source.lease().await?;
    let id = SandboxId::random().map_err(EngineError::io("get random numbers"))?;
    let name = shared.unlisted.reserve(&id).ok_or(EngineError::Removed)?;
    let new = NewSandboxes {
        source: Source::Snapshot(source),
        count: 1,
        partial: false,
        ttl: None,
        on_expiry: OnExpiry::default(),
        wake_on_traffic: false,
        metadata: BTreeMap::new(),
        about: serde_json::Map::new(),
        env: BTreeMap::new(),
        account: None,
        network,
        limits: WantedLimits::default(),
        counted: false,
        owner,
    };
    let laps = Laps::since(Instant::now());
    let mut prepared = Prepared::make(shared, &zygote, new, None, name, laps).await?;
    let _turn = prepared.turn().await;
    let mut forked = prepared.start(&zygote).await?;
    if forked.record.shape.devices.vsock.is_some() {
        forked.identify(0, env, None).await?;
    }
    own(forked)
}

fn own(forked: Forked) -> Result<Temporary, EngineError> {
    let (handle, name) = forked.own(SandboxState::Running)?;
    Ok(Temporary { handle, name: Some(name) })
}
