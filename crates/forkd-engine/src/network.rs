//! The networks of sandboxes: each has one of the host's, from the moment that it is made until it ends.
//!
//! ```text
//!   taken ─▶ the record says its slot ─▶ Fork, with the tap ─▶ … ─▶ the record says none ─▶ given back
//! ```
//!
//! A slot is in a record before anybody has its tap, and in none when it can be another's. So a daemon that starts again knows
//! which networks belong to which sandbox, and that all others are unused.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use forkd_net::{
    Access, Counters, Egress, Hold, Host, NetError, Network, Notice, Others, Policy, Pool, PoolSettings,
    PoolStats, Slot,
};
use forkd_proto::causes::with_causes;
use forkd_proto::control::Devices;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use tokio::sync::mpsc;

use crate::engine::{Engine, EngineEvent, Shared};
use crate::error::EngineError;
use crate::ids::SandboxId;
use crate::record::{self, NetworkRecord, SandboxRecord};
use crate::sandbox::Sandbox;

/// Whether sandboxes have networks.
#[derive(Debug, Clone)]
pub enum Networking {
    /// None: requests for one are refused.
    None,
    Pooled {
        host: forkd_net::Settings,
        pool: PoolSettings,
        /// For those who do not ask for less or more: bytes a second, in each direction.
        bandwidth: Option<u64>,
    },
}

/// What is asked for, beyond a sandbox's defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkOrder {
    pub egress: Option<Egress>,
    /// Bytes a second, in each direction.
    pub bandwidth: Option<u64>,
}

/// Something else for a sandbox that may be running. The rest stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkChange {
    Egress(Egress),
    /// Bytes a second, in each direction; `None` for what those have who ask for nothing.
    Bandwidth(Option<u64>),
}

/// What was found of networks when the engine started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworksFound {
    /// What was changed on the host, a sentence each.
    pub changes: Vec<String>,
    /// Sandboxes that live, and whose networks are gone.
    pub lost: Vec<SandboxId>,
    /// Unused networks.
    pub removed: usize,
    /// Why networks are unavailable, though they were wanted.
    pub unavailable: Option<String>,
}

/// The networks that sandboxes have, and those that wait for sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Networks {
    /// Or why it is unavailable.
    pool: OnceLock<Result<Pool, String>>,
    bandwidth: Option<u64>,
    held: Mutex<BTreeMap<SandboxId, Network>>,
}

const NOT_WANTED: &str = "it was started with --network none";
/// What a tap is opened by.
const TUN: &str = "/dev/net/tun";
/// Notices of drops that wait to be told. Those beyond are lost.
const NOTICES: usize = 64;
/// Of all sandboxes, so many a second are told at most.
const BETWEEN: Duration = Duration::from_millis(20);

impl Networks {
    pub fn new(networking: &Networking) -> Networks {
        let bandwidth = match networking {
            Networking::None => None,
            Networking::Pooled { bandwidth, .. } => *bandwidth,
        };
        Networks { bandwidth, ..Networks::default() }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<SandboxId, Network>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pool(&self) -> Result<&Pool, EngineError> {
        match self.pool.get() {
            Some(Ok(pool)) => Ok(pool),
            Some(Err(reason)) => Err(EngineError::NoNetwork(reason.clone())),
            None => Err(EngineError::NoNetwork("it is still starting".into())),
        }
    }

    /// While this lives, no networks are prepared in advance.
    pub fn hold(&self) -> Option<Hold> {
        self.pool().ok().map(Pool::hold)
    }

    /// Whether sandboxes with these devices can have what is asked for.
    pub fn admit(&self, order: &NetworkOrder, devices: &Devices) -> Result<(), EngineError> {
        match devices.net {
            Some(_) => self.pool().map(drop),
            None if *order == NetworkOrder::default() => Ok(()),
            None => Err(EngineError::NoNetworkDevice),
        }
    }

    /// A network for a sandbox, if it has a device for one. It must be written down before anybody gets the tap.
    pub async fn take(
        &self,
        id: &SandboxId,
        devices: &Devices,
        policy: Policy,
    ) -> Result<Option<(NetworkRecord, OwnedFd)>, EngineError> {
        forkd_proto::passes!();
        if devices.net.is_none() {
            return Ok(None);
        }
        let network = self.pool()?.take(policy.clone()).await?;
        let tap = tap_of(&network);
        let slot = network.slot();
        self.held().insert(id.clone(), network);
        // On failure, the caller returns this with the rest of the sandbox.
        Ok(Some((NetworkRecord { slot, policy }, tap?)))
    }

    /// A network for a guest that is not a sandbox. It must be returned with `return_temporary`.
    pub async fn lease_temporary(&self) -> Result<(Network, OwnedFd), EngineError> {
        let pool = self.pool()?;
        let network = pool.take(Policy { bandwidth: self.bandwidth, ..Policy::default() }).await?;
        match tap_of(&network) {
            Ok(tap) => Ok((network, tap)),
            Err(error) => {
                pool.give_back(network);
                Err(error)
            }
        }
    }

    pub fn return_temporary(&self, network: Network) {
        if let Ok(pool) = self.pool() {
            pool.give_back(network);
        }
    }

    /// What a sandbox of a snapshot may do: what is asked for, else what the sandbox may that was branched, else anything that
    /// is harmless.
    pub fn policy(&self, order: &NetworkOrder, parent: Option<&Policy>) -> Policy {
        let parent = parent.cloned().unwrap_or_default();
        Policy {
            egress: order.egress.clone().unwrap_or(parent.egress),
            bandwidth: order.bandwidth.or(parent.bandwidth).or(self.bandwidth),
        }
    }

    /// The way to a sandbox's rules.
    pub fn access(&self, id: &SandboxId) -> Option<Access> {
        self.held().get(id).map(|network| network.access())
    }

    /// Gives a sandbox's network back, if no record says any more that it has it.
    pub fn give_back(&self, id: &SandboxId, directory: &Path) {
        // One that cannot be read may say it.
        let is_written = match record::read::<SandboxRecord>(directory) {
            Ok(record) => record.is_some_and(|record| record.network.is_some()),
            Err(_) => true,
        };
        if is_written {
            return;
        }
        let network = self.held().remove(id);
        if let (Some(network), Ok(pool)) = (network, self.pool()) {
            pool.give_back(network);
        }
    }

    async fn open(
        &self,
        networking: Networking,
        (held, others): (BTreeMap<Slot, Policy>, Others),
        taps: Vec<(Slot, OwnedFd)>,
        notices: mpsc::Sender<Notice>,
    ) -> Result<Opened, NetError> {
        let Networking::Pooled { host, pool, .. } = networking else { return Ok(None) };
        let pool = PoolSettings { notices: Some(notices), ..pool };
        let (host, prepared) = Host::prepare(host).await?;
        for (slot, tap) in taps {
            // One that is not found is lost, which is said below.
            let _ = host.name_again(slot, tap).await;
        }
        let (pool, recovered) = Pool::start(host, pool, held, others).await?;
        Ok(Some((pool, recovered, prepared.changes)))
    }
}

type Opened = Option<(Pool, forkd_net::Recovered, Vec<String>)>;

fn tap_of(network: &Network) -> Result<OwnedFd, EngineError> {
    let tap = network.tap().map(|tap| tap.try_clone_to_owned()).transpose();
    let tap = tap.map_err(EngineError::io("hand out a tap"))?;
    tap.ok_or_else(|| EngineError::io("hand out a tap")(std::io::ErrorKind::NotFound.into()))
}

/// The tap that a VM process has open.
fn tap_of_process(pid: i32) -> Option<OwnedFd> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let is_tap = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|path| path == Path::new(TUN));
    let number = descriptors.into_iter().find(is_tap)?.file_name().to_str()?.parse().ok()?;
    let pidfd = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    pidfd_getfd(pidfd, number, PidfdGetfdFlags::empty()).ok()
}

/// Takes the host's networks over, when all sandboxes are known: theirs are found again, and the others are removed.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    networking: Networking,
) -> Result<NetworksFound, EngineError> {
    let mut slots = BTreeMap::new();
    let mut policies = BTreeMap::new();
    let written = shared.written();
    for record in written.sandboxes {
        if let Some(NetworkRecord { slot, policy }) = record.network {
            slots.insert(slot, record.id);
            policies.insert(slot, policy);
        }
    }
    let others = if written.unreadable.is_empty() { Others::Remove } else { Others::Keep };
    let networks = &shared.networks;
    let (notices, told) = mpsc::channel(NOTICES);
    let taps = slots.iter().filter_map(|(slot, id)| {
        let pid = shared.sandboxes.get(id)?.view().pid;
        Some((*slot, tap_of_process(pid)?))
    });
    let taps = taps.collect();
    let opened = match networks.open(networking, (policies, others), taps, notices).await {
        Ok(opened) => opened,
        Err(error) => {
            let reason = with_causes(&error);
            let _ = networks.pool.set(Err(reason.clone()));
            return Ok(NetworksFound { unavailable: Some(reason), ..NetworksFound::default() });
        }
    };
    let Some((pool, recovered, changes)) = opened else {
        let _ = networks.pool.set(Err(NOT_WANTED.into()));
        return Ok(NetworksFound::default());
    };
    let _ = networks.pool.set(Ok(pool));
    tokio::spawn(hand_on(Arc::downgrade(shared), told));
    for (slot, network) in recovered.networks {
        let Some(id) = slots.get(&slot) else { continue };
        networks.held().insert(id.clone(), network);
        // It may have ended since its record was read.
        networks.give_back(id, &shared.paths.sandbox(id));
    }
    let lost: Vec<SandboxId> = recovered.lost.keys().filter_map(|slot| slots.get(slot).cloned()).collect();
    for id in &lost {
        match shared.sandboxes.get(id) {
            // It may have ended meanwhile.
            Some(sandbox) => drop(sandbox.lose_network().await),
            None => forget(&shared.paths.sandbox(id))?,
        }
    }
    Ok(NetworksFound { changes, lost, removed: recovered.swept.len(), unavailable: None })
}

/// Tells of what was dropped, for as long as there is an engine. A pause between each keeps those who do not care from missing
/// what they do care about.
async fn hand_on(shared: Weak<Shared>, mut told: mpsc::Receiver<Notice>) {
    while let Some(Notice { tenancy, dropped, .. }) = told.recv().await {
        let Some(shared) = shared.upgrade() else { return };
        let holder = {
            let held = shared.networks.held();
            // By now another sandbox may have the slot.
            held.iter().find(|(_, network)| network.tenancy() == tenancy).map(|(id, _)| id.clone())
        };
        if let Some(id) = holder {
            // One that is being made is not known to clients yet.
            if let Some(sandbox) = shared.sandboxes.get(&id) {
                shared.tell(&sandbox.view().record.project, EngineEvent::Dropped(id, dropped));
            }
        }
        drop(shared);
        tokio::time::sleep(BETWEEN).await;
    }
}

/// Writes down that a sandbox whose process does not answer has no network.
fn forget(directory: &Path) -> Result<(), EngineError> {
    if let Ok(Some(mut record)) = record::read::<SandboxRecord>(directory) {
        record.network = None;
        record::write(directory, &record)?;
    }
    Ok(())
}

impl Shared {
    /// Takes over the network of a sandbox that was not known when the engine started.
    pub(crate) async fn adopt_network(&self, record: &SandboxRecord) {
        let networks = &self.networks;
        let (Some(network), Ok(pool)) = (&record.network, networks.pool()) else { return };
        if networks.access(&record.id).is_some() {
            return;
        }
        match (pool.adopt(network.slot, network.policy.clone()).await, self.sandboxes.get(&record.id)) {
            (Ok(network), Some(_)) => {
                networks.held().insert(record.id.clone(), network);
                // It may have ended meanwhile.
                networks.give_back(&record.id, &self.paths.sandbox(&record.id));
            }
            (Ok(network), None) => pool.give_back(network),
            (Err(_), Some(sandbox)) => drop(sandbox.lose_network().await),
            (Err(_), None) => {}
        }
    }

    /// Gives back the networks of sandboxes that are gone, and could not be when they went.
    pub(crate) fn sweep_networks(&self) {
        let ids: Vec<SandboxId> = self.networks.held().keys().cloned().collect();
        for id in ids.iter().filter(|id| !self.has_name(id)) {
            self.networks.give_back(id, &self.paths.sandbox(id));
        }
    }
}

impl Sandbox {
    /// Gives the network back of a sandbox that has ended.
    pub(crate) fn leave_network(&mut self) {
        let Some(network) = self.record.network.take() else { return };
        match record::write(&self.directory, &self.record) {
            Ok(()) => self.shared.networks.give_back(&self.record.id, &self.directory),
            // It is given back with the directory.
            Err(_) => self.record.network = Some(network),
        }
    }

    /// The network is gone, for any reason.
    pub(crate) fn lose_network(&mut self) -> Result<(), EngineError> {
        self.record.network = None;
        self.save()
    }

    /// Other rules, for a sandbox that may be running.
    pub(crate) async fn change_network(&mut self, change: NetworkChange) -> Result<(), EngineError> {
        self.check_alive()?;
        let Some(network) = &self.record.network else { return Err(EngineError::NoNetworkDevice) };
        let networks = &self.shared.networks;
        let before = network.policy.clone();
        let policy = match change {
            NetworkChange::Egress(egress) => Policy { egress, ..before },
            NetworkChange::Bandwidth(wanted) => Policy { bandwidth: wanted.or(networks.bandwidth), ..before },
        };
        networks.pool()?;
        let access = networks.access(&self.record.id).ok_or(EngineError::NoNetworkDevice)?;
        access.change(policy.clone()).await?;
        if let Some(network) = &mut self.record.network {
            network.policy = policy;
        }
        self.save()
    }
}

impl Engine {
    /// What went through a sandbox's network, and what did not. `None` if it has none.
    pub async fn traffic(&self, id: &str) -> Result<Option<Counters>, EngineError> {
        let view = self.sandbox(id)?.view();
        match self.shared.networks.access(view.id()) {
            Some(access) => match access.counters().await {
                Ok(counters) => Ok(Some(counters)),
                // It has ended meanwhile.
                Err(NetError::Released) => Ok(None),
                Err(error) => Err(error.into()),
            },
            None => Ok(None),
        }
    }

    /// Whether sandboxes can have networks, and if not, why.
    pub fn networks(&self) -> Result<(), EngineError> {
        self.shared.networks.pool().map(drop)
    }

    /// What the pool of networks has, and has done. `None` without networks.
    pub fn network_pool(&self) -> Option<PoolStats> {
        self.shared.networks.pool().ok().map(Pool::stats)
    }

    /// Removes the networks that wait for sandboxes. Those of sandboxes stay, as the sandboxes do.
    pub async fn stop_networks(&self) -> Result<(), EngineError> {
        match self.shared.networks.pool() {
            Ok(pool) => Ok(pool.stop().await?),
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use forkd_proto::control::Net;

    use super::*;

    fn order(egress: Option<Egress>, bandwidth: Option<u64>) -> NetworkOrder {
        NetworkOrder { egress, bandwidth }
    }

    #[test]
    fn what_is_asked_for_outranks_the_parent_and_that_the_daemon() {
        let networks = Networks { bandwidth: Some(7), ..Networks::default() };
        let parent = Policy { egress: Egress::Deny, bandwidth: Some(5) };
        let policy = |order, parent| networks.policy(&order, parent);
        assert_eq!(policy(order(None, None), None), Policy { egress: Egress::Allow, bandwidth: Some(7) });
        assert_eq!(policy(order(None, None), Some(&parent)), parent);
        let asked = order(Some(Egress::Allow), Some(3));
        assert_eq!(policy(asked, Some(&parent)), Policy { egress: Egress::Allow, bandwidth: Some(3) });
    }

    #[test]
    fn nobody_goes_silently_without() {
        let networks = Networks::default();
        let _ = networks.pool.set(Err("no rights".into()));
        let without = Devices::default();
        let with = Devices { net: Some(Net { mac: [2; 6], mtu: None }), ..Devices::default() };
        assert!(networks.admit(&order(None, None), &without).is_ok());
        let refused = networks.admit(&order(None, None), &with).unwrap_err();
        assert!(matches!(refused, EngineError::NoNetwork(reason) if reason == "no rights"));
        let refused = networks.admit(&order(Some(Egress::Deny), None), &without).unwrap_err();
        assert!(matches!(refused, EngineError::NoNetworkDevice));
    }
}
