//! Networks that are made before they are needed, because making one takes longer than a fork.
//!
//! ```text
//!   free slots ── make ──▶ ready ── take ──▶ a sandbox's ── give back ──▶ used ── remove ──▶ free slots
//!                            ▲                                             │
//!                            └──────────────────── reset ──────────────────┘
//! ```
//!
//! Making, resetting and removing happen in the background, and only while nothing is created. How many are ready follows from how
//! many were taken at once ([`demand`]); as many used ones are reset ([`crate::reset`]) as are missing, and the others are removed, as
//! is every one that cannot be shown to be as good as new. What of all this is there after a crash is decided by who lives:
//! [`Pool::start`] is told which slots sandboxes have, and removes the rest.

mod demand;
mod queue;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::queue::{Doomed, Queue, Work};
use crate::drops::Notice;
use crate::error::{NetError, blocking};
use crate::host::Host;
use crate::lease::Lease;
use crate::plan::Slot;
use crate::policy::Policy;
use crate::reset::reset;
use crate::resolver::{Resolver, Upstream};

/// After something went wrong that may be right later.
const PAUSE: Duration = Duration::from_secs(1);
/// Once a network was taken, making others must not slow the fork: after each the worker rests for so many times as long as it took.
const REST: u32 = 4;
/// And no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(2);
/// How often it is looked whether fewer networks are wanted than are ready.
const LOOK: Duration = Duration::from_secs(60);
/// How long the VM of a network that is to be reset may take to end.
const ENDING_VM: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub struct PoolSettings {
    /// How many networks wait for sandboxes, or as many as were taken at once of late, if that is more.
    pub ready: usize,
    /// Who is asked for names.
    pub upstream: Upstream,
    /// Who is told of what is dropped.
    pub notices: Option<mpsc::Sender<Notice>>,
}

impl Default for PoolSettings {
    fn default() -> PoolSettings {
        PoolSettings { ready: 16, upstream: Upstream::default(), notices: None }
    }
}

/// A sandbox's network, with its resolver.
///
/// Dropped, it stays on the host, as the sandbox does when the daemon ends; its names are answered again after its adoption.
#[derive(Debug)]
pub struct Network {
    lease: Lease,
    resolver: Resolver,
}

impl Deref for Network {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}

impl Network {
    async fn make(host: &Arc<Host>, slot: Slot, settings: &PoolSettings) -> Result<Network, NetError> {
        let lease = Lease::make(host, slot, Policy::default()).await?;
        Network::with_resolver(lease, settings).await
    }

    async fn with_resolver(lease: Lease, settings: &PoolSettings) -> Result<Network, NetError> {
        let resolver = lease.resolver(settings.upstream.clone(), settings.notices.clone()).await?;
        Ok(Network { lease, resolver })
    }

    /// Ends the resolver.
    async fn into_lease(self) -> Lease {
        self.resolver.end().await;
        self.lease
    }
}

/// What a pool has, and has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Networks that wait for sandboxes now.
    pub ready: usize,
    /// Taken so far: those that were made for it, and those that another sandbox had before.
    pub taken_new: u64,
    pub taken_reused: u64,
    /// Used ones that were to be reset, and were removed instead.
    pub not_reused: u64,
}

/// What became of the slots that sandboxes had.
#[derive(Debug)]
pub struct Recovered {
    pub networks: BTreeMap<Slot, Network>,
    /// These sandboxes have no network any more.
    pub lost: BTreeMap<Slot, NetError>,
    /// Unused ones, which were removed.
    pub swept: Vec<Slot>,
}

/// The networks of a host's sandboxes.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
    /// Of this host's pools, only one lives.
    _lock: File,
}

/// The lock of the one who has the networks of sandboxes.
const LOCK: &str = "sandboxes";
/// How long its previous owner may take to end.
const ENDING: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Shared {
    host: Arc<Host>,
    settings: PoolSettings,
    state: Mutex<PoolState>,
    /// There may be work.
    work: Notify,
    /// The worker has found nothing to do.
    idle: Notify,
    /// The kernel makes one at a time; of many who need one at once, the others wait here and not on threads.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct PoolState {
    queue: Queue<Network>,
    stats: PoolStats,
    busy: bool,
    /// The worker ends after what it is doing.
    stopping: bool,
}

/// A fork that must not be delayed: spare networks are made when this is dropped.
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.state().queue.holds -= 1;
        self.shared.work.notify_one();
    }
}

/// What becomes of networks that no sandbox is known to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    Remove,
    /// Who has them is not known now. Their slots are not used.
    Keep,
}

impl Pool {
    /// Takes the host over: adopts the networks of live sandboxes with their policies. Refused if another daemon has it.
    pub async fn start(
        host: Arc<Host>,
        settings: PoolSettings,
        held: BTreeMap<Slot, Policy>,
        others: Others,
    ) -> Result<(Pool, Recovered), NetError> {
        let lock = lock(&host).await?;
        let mut slots: BTreeSet<Slot> = held.keys().copied().collect();
        let swept = match others {
            Others::Remove => host.sweep(slots.clone()).await?,
            Others::Keep => {
                slots.extend(host.used()?);
                Vec::new()
            }
        };
        let mut recovered = Recovered { networks: BTreeMap::new(), lost: BTreeMap::new(), swept };
        let mut doomed = VecDeque::new();
        for (slot, policy) in held {
            let adopted = async {
                let lease = Lease::adopt(&host, slot, policy).await?;
                Network::with_resolver(lease, &settings).await
            };
            match adopted.await {
                Ok(network) => drop(recovered.networks.insert(slot, network)),
                Err(error) => {
                    doomed.push_back(Doomed::Slot(slot));
                    recovered.lost.insert(slot, error);
                }
            }
        }
        let free = Slot::sandboxes().filter(|slot| !slots.contains(slot)).collect();
        let queue = Queue::new(free, doomed);
        let state = Mutex::new(PoolState { queue, stats: PoolStats::default(), busy: true, stopping: false });
        let shared = Arc::new(Shared {
            host,
            settings,
            state,
            work: Notify::new(),
            idle: Notify::new(),
            turn: tokio::sync::Mutex::default(),
        });
        let worker = Mutex::new(Some(tokio::spawn(work(Arc::clone(&shared)))));
        Ok((Pool { shared, worker, _lock: lock }, recovered))
    }

    /// The network of a live sandbox that was not known when the pool was started with [`Others::Keep`].
    pub async fn adopt(&self, slot: Slot, policy: Policy) -> Result<Network, NetError> {
        let lease = Lease::adopt(&self.shared.host, slot, policy).await?;
        Network::with_resolver(lease, &self.shared.settings).await
    }

    /// A network for a sandbox. It is the caller's, until it is given back.
    pub async fn take(&self, policy: Policy) -> Result<Network, NetError> {
        policy.check()?;
        let (sender, receiver) = oneshot::channel();
        let shared = Arc::clone(&self.shared);
        // A task of its own, which is completed even if its caller has gone.
        tokio::spawn(async move {
            let taken = shared.take(policy).await;
            if let Err(Ok(network)) = sender.send(taken) {
                shared.give_back(network);
            }
        });
        receiver.await.unwrap_or(Err(NetError::Ended))
    }

    /// Makes no spare networks while the returned value lives.
    pub fn hold(&self) -> Hold {
        self.shared.state().queue.holds += 1;
        Hold { shared: Arc::clone(&self.shared) }
    }

    /// Gives a network back whose VM has ended. In the background it is reset, or removed.
    pub fn give_back(&self, network: Network) {
        self.shared.give_back(network);
    }

    pub fn stats(&self) -> PoolStats {
        let state = self.shared.state();
        PoolStats { ready: state.queue.ready.len(), ..state.stats }
    }

    /// Waits until everything is made, reset and removed that was to be.
    pub async fn settled(&self) {
        loop {
            let idle = self.shared.idle.notified();
            let settled = {
                let state = self.shared.state();
                !state.busy && state.queue.is_settled(self.shared.settings.ready, Instant::now())
            };
            if settled {
                return;
            }
            idle.await;
        }
    }

    /// Removes the networks that wait. Those of sandboxes stay.
    pub async fn stop(&self) -> Result<(), NetError> {
        // Not aborted: what it makes at this moment would be left.
        self.shared.state().stopping = true;
        self.shared.work.notify_one();
        let worker = self.worker().take();
        if let Some(worker) = worker {
            // The remains of one that has panicked is removed by the next pool.
            let _ = worker.await;
        }
        let doomed: Vec<Doomed<Network>> = {
            let mut state = self.shared.state();
            let queue = &mut state.queue;
            let networks = queue.ready.drain(..).chain(queue.used.drain(..));
            let networks = networks.map(|network| Doomed::Network(Box::new(network)));
            networks.chain(queue.doomed.drain(..)).collect()
        };
        self.shared.remove(doomed).await
    }
}

impl Pool {
    fn worker(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.worker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A daemon that was killed has its locks until its last thread is out of the kernel.
async fn lock(host: &Host) -> Result<File, NetError> {
    let begun = Instant::now();
    loop {
        if let Some(lock) = host.lock(LOCK).map_err(NetError::when("lock the networks"))? {
            return Ok(lock);
        }
        if begun.elapsed() > ENDING {
            return Err(NetError::Taken);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(worker) = self.worker().take() {
            worker.abort();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self, policy: Policy) -> Result<Network, NetError> {
        let ready = {
            let queue = &mut self.state().queue;
            let now = Instant::now();
            queue.last_taken = Some(now);
            queue.demand.taken(now);
            queue.ready.pop_front()
        };
        self.work.notify_one();
        let network = match ready {
            Some(network) => network,
            None => self.make().await?,
        };
        if network.policy() != policy {
            let changed = network.change(policy).await;
            if let Err(error) = changed {
                self.doom(Doomed::Network(Box::new(network)));
                return Err(error);
            }
        }
        tracing::debug!(slot = %network.slot(), reused = network.is_reused(), "leased a network");
        let stats = &mut self.state().stats;
        let taken = if network.is_reused() { &mut stats.taken_reused } else { &mut stats.taken_new };
        *taken += 1;
        Ok(network)
    }

    /// One that a request waits for.
    async fn make(&self) -> Result<Network, NetError> {
        let _turn = self.turn.lock().await;
        // It may have become ready while others had their turn.
        let ready = self.state().queue.ready.pop_front();
        if let Some(network) = ready {
            return Ok(network);
        }
        // Not a used one: a reset takes less CPU than making one, but waits longer for the kernel.
        let slot = self.state().queue.free.pop_front();
        let slot = slot.ok_or(NetError::Full(usize::from(crate::plan::SANDBOXES)))?;
        let made = Network::make(&self.host, slot, &self.settings).await;
        made.inspect_err(|_| self.doom(Doomed::Slot(slot)))
    }

    /// Does background work, and rests afterwards.
    async fn quietly<T>(&self, work: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let done = work.await;
        let rest = (begun.elapsed() * REST).min(LONGEST_REST);
        let queue = &mut self.state().queue;
        // The first ones are wanted soon, and no fork is running.
        queue.resting_until = queue.last_taken.map(|_| Instant::now() + rest);
        done
    }

    /// Those of the networks that can be used again. The others are removed later.
    async fn reset(&self, networks: Vec<Network>, patience: Duration) -> Vec<Network> {
        let slots: Vec<Slot> = networks.iter().map(|network| network.slot()).collect();
        let mut leases = Vec::new();
        for network in networks {
            leases.push(network.into_lease().await);
        }
        let done = match blocking(move || Ok(reset(leases, patience))).await {
            Ok(done) => done,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot reset networks");
                slots.into_iter().for_each(|slot| self.doom(Doomed::Slot(slot)));
                return Vec::new();
            }
        };
        let mut networks = Vec::new();
        for (slot, reset) in done {
            let network = reset.and_then(|(lease, sockets)| {
                let PoolSettings { upstream, notices, .. } = self.settings.clone();
                let resolver = lease.answer(sockets, upstream, notices)?;
                Ok(Network { lease, resolver })
            });
            match network {
                Ok(network) => networks.push(network),
                Err(error) => {
                    tracing::info!(%slot, error = &error as &dyn std::error::Error, "a network cannot be reused");
                    self.state().stats.not_reused += 1;
                    self.doom(Doomed::Slot(slot));
                }
            }
        }
        networks
    }

    fn give_back(&self, network: Network) {
        {
            let queue = &mut self.state().queue;
            queue.demand.given_back();
            match network.tap() {
                Some(_) => queue.give_back(network, Instant::now()),
                // It was found again after a crash, and its tap goes with its VM.
                None => queue.doomed.push_back(Doomed::Network(Box::new(network))),
            }
        }
        self.work.notify_one();
    }

    fn doom(&self, doomed: Doomed<Network>) {
        self.state().queue.doomed.push_back(doomed);
        self.work.notify_one();
    }

    /// Removes networks, and frees their slots.
    async fn remove(&self, doomed: Vec<Doomed<Network>>) -> Result<(), NetError> {
        let (mut used, mut doubtful) = (Vec::new(), Vec::new());
        for one in doomed {
            match one {
                Doomed::Network(network) => used.push(network.into_lease().await),
                Doomed::Slot(slot) => doubtful.push(slot),
            }
        }
        let used_slots: Vec<Slot> = used.iter().map(Lease::slot).collect();
        let slots: Vec<Slot> = used_slots.iter().chain(&doubtful).copied().collect();
        let host = Arc::clone(&self.host);
        let removed = blocking(move || {
            doubtful.iter().try_for_each(|slot| host.clear(*slot))?;
            used.into_iter().for_each(Lease::leave);
            host.abandon(&used_slots)
        });
        match removed.await {
            Ok(()) => self.state().queue.free.extend(slots),
            Err(error) => {
                slots.into_iter().for_each(|slot| self.doom(Doomed::Slot(slot)));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Makes, resets and removes networks, one after the other: the kernel does no more of it at once.
async fn work(shared: Arc<Shared>) {
    loop {
        let next = {
            let mut state = shared.state();
            if state.stopping {
                return;
            }
            let next = state.queue.next(shared.settings.ready, Instant::now());
            state.busy = !matches!(next, Work::Nothing);
            next
        };
        let done = match next {
            Work::Nothing => {
                shared.idle.notify_waiters();
                // There is no notification when fewer are wanted than before.
                let _ = timeout(LOOK, shared.work.notified()).await;
                continue;
            }
            Work::Wait(time) => {
                // One was taken or returned, or this is to end.
                let _ = timeout(time, shared.work.notified()).await;
                continue;
            }
            Work::Remove(doomed) => shared.remove(doomed).await,
            Work::Reset(used) => {
                let networks = shared.quietly(shared.reset(used, ENDING_VM)).await;
                shared.state().queue.ready.extend(networks);
                Ok(())
            }
            Work::Make(slot) => {
                let made = shared.quietly(Network::make(&shared.host, slot, &shared.settings)).await;
                match made {
                    Ok(network) => {
                        shared.state().queue.ready.push_back(network);
                        Ok(())
                    }
                    Err(error) => {
                        shared.doom(Doomed::Slot(slot));
                        Err(error)
                    }
                }
            }
        };
        if let Err(error) = done {
            tracing::warn!(error = &error as &dyn std::error::Error, "the networks of sandboxes");
            tokio::time::sleep(PAUSE).await;
        }
    }
}
