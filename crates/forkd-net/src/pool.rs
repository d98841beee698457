//! Networks that are made before they are needed, because making one takes longer than a fork.
//!
//! ```text
//!   free slots ── make ──▶ ready ── take ──▶ a sandbox's ── give back ──▶ returned ── clear ──▶ free slots
//!                 (in the background)                                    (in the background)
//! ```
//!
//! A network that was used is not used again: another sandbox's connections, names and counters are in it. What of all this is
//! there after a crash is decided by who lives: [`Pool::start`] is told which slots sandboxes have, and removes the rest.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::drops::Notice;
use crate::error::NetError;
use crate::host::Host;
use crate::lease::Lease;
use crate::plan::Slot;
use crate::policy::Policy;
use crate::resolver::{Resolver, Upstream};

/// After something went wrong that may be right later.
const PAUSE: Duration = Duration::from_secs(1);
/// Whoever takes one is about to fork, and perhaps others are: those that are missing are made when that is over.
const QUIET: Duration = Duration::from_millis(250);
/// Once somebody has taken one, making others is not to be felt: after each the worker rests for so many times as long as it took.
const REST: u32 = 4;
/// And no longer than this.
const LONGEST_REST: Duration = Duration::from_secs(2);
/// Networks that are taken within this time of each other are taken at once.
const BURST: Duration = Duration::from_secs(10);
/// How long it is remembered how many were.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Each that waits costs the kernel some memory.
const MOST_READY: usize = 128;
/// Networks that are removed at once.
const BATCH: usize = 128;

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
/// Dropped, it stays on the host, as the sandbox does when the daemon ends; its names are answered again by whoever adopts it.
#[derive(Debug)]
pub struct Network {
    lease: Lease,
    _resolver: Resolver,
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
        Ok(Network { lease, _resolver: resolver })
    }
}

/// What became of the slots that sandboxes had.
#[derive(Debug)]
pub struct Recovered {
    pub networks: BTreeMap<Slot, Network>,
    /// These sandboxes have no network any more.
    pub lost: BTreeMap<Slot, NetError>,
    /// What nobody had, and is removed.
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
/// How long whoever had it may take to end.
const ENDING: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Shared {
    host: Arc<Host>,
    settings: PoolSettings,
    state: Mutex<State>,
    /// There may be work.
    work: Notify,
    /// The worker has found nothing to do.
    idle: Notify,
    /// The kernel makes one at a time; of many who need one at once, the others wait here and not on threads.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The one that was free for the longest time is taken first.
    free: VecDeque<Slot>,
    ready: VecDeque<Network>,
    returned: VecDeque<Returned>,
    busy: bool,
    last_taken: Option<Instant>,
    demand: Demand,
    /// No other one is made before.
    resting_until: Option<Instant>,
    /// How many have asked not to be disturbed.
    holds: usize,
    /// The worker ends after what it is doing.
    stopping: bool,
}

/// How many networks were taken at once of late.
#[derive(Debug, Default)]
struct Demand {
    /// In the burst that is going on, or was the last, without those that were given back already.
    burst: usize,
    last: Option<Instant>,
    /// In the largest one, and when that was.
    most: usize,
    when: Option<Instant>,
}

impl Demand {
    fn taken(&mut self, now: Instant) {
        let goes_on = self.last.is_some_and(|last| now.duration_since(last) < BURST);
        self.burst = if goes_on { self.burst + 1 } else { 1 };
        self.last = Some(now);
        if self.burst >= self.recent(now) {
            (self.most, self.when) = (self.burst, Some(now));
        }
    }

    fn given_back(&mut self) {
        self.burst = self.burst.saturating_sub(1);
    }

    fn recent(&self, now: Instant) -> usize {
        let fresh = self.when.is_some_and(|when| now.duration_since(when) < REMEMBERED);
        if fresh { self.most } else { 0 }
    }
}

#[derive(Debug)]
enum Returned {
    Network(Box<Network>),
    /// Something may be there.
    Slot(Slot),
}

/// Somebody who is not to be disturbed: networks that nobody waits for are made when this is gone.
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.state().holds -= 1;
        self.shared.work.notify_one();
    }
}

/// What the worker does next.
#[derive(Debug)]
enum Work {
    Make(Slot),
    Clear(Vec<Returned>),
    /// One will be made then.
    Wait(Duration),
    Nothing,
}

impl State {
    /// How many networks are to wait for sandboxes.
    fn wanted(&self, least: usize, now: Instant) -> usize {
        self.demand.recent(now).min(MOST_READY).max(least)
    }

    /// A network that waits is needed sooner than a slot.
    fn next(&mut self, least: usize, now: Instant) -> Work {
        let short = self.holds == 0 && self.ready.len() < self.wanted(least, now);
        let wait = self.wait(now);
        if short
            && wait.is_zero()
            && let Some(slot) = self.free.pop_front()
        {
            return Work::Make(slot);
        }
        if !self.returned.is_empty() {
            let count = self.returned.len().min(BATCH);
            return Work::Clear(self.returned.drain(..count).collect());
        }
        if short && !self.free.is_empty() { Work::Wait(wait) } else { Work::Nothing }
    }

    /// How long nobody is to be disturbed.
    fn wait(&self, now: Instant) -> Duration {
        let quiet = self.last_taken.map(|taken| taken + QUIET);
        let until = quiet.max(self.resting_until);
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
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
    /// Takes the host over: adopts the networks of live sandboxes with their policies. Refused if somebody else has it.
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
        let mut returned = VecDeque::new();
        for (slot, policy) in held {
            let adopted = async {
                let lease = Lease::adopt(&host, slot, policy).await?;
                Network::with_resolver(lease, &settings).await
            };
            match adopted.await {
                Ok(network) => drop(recovered.networks.insert(slot, network)),
                Err(error) => {
                    returned.push_back(Returned::Slot(slot));
                    recovered.lost.insert(slot, error);
                }
            }
        }
        let free = Slot::sandboxes().filter(|slot| !slots.contains(slot)).collect();
        let state = Mutex::new(State { free, returned, busy: true, ..State::default() });
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
        // A task of its own, which comes to its end also if nobody waits for it any more.
        tokio::spawn(async move {
            let taken = shared.take(policy).await;
            if let Err(Ok(network)) = sender.send(taken) {
                shared.give_back(Returned::Network(Box::new(network)));
            }
        });
        receiver.await.unwrap_or(Err(NetError::Ended))
    }

    /// Makes no networks that nobody waits for, as long as what is returned lives.
    pub fn hold(&self) -> Hold {
        self.shared.state().holds += 1;
        Hold { shared: Arc::clone(&self.shared) }
    }

    /// Gives a network back whose VM has ended. It is removed in the background.
    pub fn give_back(&self, network: Network) {
        self.shared.give_back(Returned::Network(Box::new(network)));
    }

    /// Waits until everything is made and removed that was to be.
    pub async fn settled(&self) {
        loop {
            let idle = self.shared.idle.notified();
            let settled = {
                let state = self.shared.state();
                let all = state.wanted(self.shared.settings.ready, Instant::now());
                let wanted = state.ready.len() < all && !state.free.is_empty();
                !state.busy && state.returned.is_empty() && !wanted
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
            // What is left of one that has panicked is removed by the next pool.
            let _ = worker.await;
        }
        let (ready, returned) = {
            let mut state = self.shared.state();
            (std::mem::take(&mut state.ready), std::mem::take(&mut state.returned))
        };
        let ready = ready.into_iter().map(|network| Returned::Network(Box::new(network)));
        self.shared.clear(ready.chain(returned).collect()).await
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
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn take(&self, policy: Policy) -> Result<Network, NetError> {
        let ready = {
            let mut state = self.state();
            let now = Instant::now();
            state.last_taken = Some(now);
            state.demand.taken(now);
            state.ready.pop_front()
        };
        self.work.notify_one();
        let network = match ready {
            Some(network) => network,
            None => self.make().await?,
        };
        if network.policy() != policy {
            let changed = network.change(policy).await;
            if let Err(error) = changed {
                self.give_back(Returned::Network(Box::new(network)));
                return Err(error);
            }
        }
        Ok(network)
    }

    /// Makes one that nobody waits for.
    async fn make_quietly(&self, slot: Slot) -> Result<Network, NetError> {
        let begun = Instant::now();
        let made = Network::make(&self.host, slot, &self.settings).await;
        let rest = (begun.elapsed() * REST).min(LONGEST_REST);
        let mut state = self.state();
        // The first ones are wanted soon, and nobody is there to be disturbed.
        state.resting_until = state.last_taken.map(|_| Instant::now() + rest);
        made
    }

    async fn make(&self) -> Result<Network, NetError> {
        let _turn = self.turn.lock().await;
        let slot = self.state().free.pop_front();
        let slot = slot.ok_or(NetError::Full(usize::from(crate::plan::SANDBOXES)))?;
        let made = Network::make(&self.host, slot, &self.settings).await;
        made.inspect_err(|_| self.give_back(Returned::Slot(slot)))
    }

    fn give_back(&self, returned: Returned) {
        let mut state = self.state();
        state.demand.given_back();
        state.returned.push_back(returned);
        drop(state);
        self.work.notify_one();
    }

    /// Removes what was returned, and frees its slots.
    async fn clear(&self, returned: Vec<Returned>) -> Result<(), NetError> {
        let (mut used, mut doubtful) = (Vec::new(), Vec::new());
        for one in returned {
            match one {
                // Dropped, its tap and its sockets keep nothing alive.
                Returned::Network(network) => used.push(network.slot()),
                Returned::Slot(slot) => doubtful.push(slot),
            }
        }
        let slots: Vec<Slot> = used.iter().chain(&doubtful).copied().collect();
        let host = Arc::clone(&self.host);
        let cleared = crate::error::blocking(move || {
            doubtful.iter().try_for_each(|slot| host.clear(*slot))?;
            host.abandon(&used)
        });
        match cleared.await {
            Ok(()) => self.state().free.extend(slots),
            Err(error) => {
                slots.into_iter().for_each(|slot| self.give_back(Returned::Slot(slot)));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Makes and removes networks, one at a time: the kernel does no more of it at once.
async fn work(shared: Arc<Shared>) {
    loop {
        let next = {
            let mut state = shared.state();
            if state.stopping {
                return;
            }
            let next = state.next(shared.settings.ready, Instant::now());
            state.busy = !matches!(next, Work::Nothing);
            next
        };
        let done = match next {
            Work::Nothing => {
                shared.idle.notify_waiters();
                shared.work.notified().await;
                continue;
            }
            Work::Wait(time) => {
                tokio::select! {
                    () = tokio::time::sleep(time) => {}
                    // Somebody takes one, gives one back, or wants this to end.
                    () = shared.work.notified() => {}
                }
                continue;
            }
            Work::Clear(returned) => shared.clear(returned).await,
            Work::Make(slot) => match shared.make_quietly(slot).await {
                Ok(network) => {
                    shared.state().ready.push_back(network);
                    Ok(())
                }
                Err(error) => {
                    shared.give_back(Returned::Slot(slot));
                    Err(error)
                }
            },
        };
        if let Err(error) = done {
            tracing::warn!(error = &error as &dyn std::error::Error, "the networks of sandboxes");
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_wait_as_were_taken_at_once_of_late() {
        let now = Instant::now();
        let mut state = State::default();
        assert_eq!(state.wanted(4, now), 4);
        (0..3).for_each(|_| state.demand.taken(now));
        assert_eq!(state.wanted(4, now), 4);
        (0..100).for_each(|_| state.demand.taken(now));
        assert_eq!(state.wanted(4, now), 103);
        (0..100).for_each(|_| state.demand.taken(now));
        assert_eq!(state.wanted(4, now), MOST_READY);
        // A smaller one changes nothing until the larger one is forgotten.
        let later = now + REMEMBERED / 2;
        (0..7).for_each(|_| state.demand.taken(later));
        assert_eq!(state.wanted(4, later), MOST_READY);
        let latest = now + REMEMBERED;
        assert_eq!(state.wanted(4, latest), 4);
        (0..7).for_each(|_| state.demand.taken(latest));
        assert_eq!(state.wanted(4, latest), 7);
        for _ in 0..20 {
            state.demand.given_back();
            state.demand.taken(latest);
        }
        assert_eq!(state.wanted(4, latest), 7);
    }

    #[test]
    fn what_nobody_waits_for_disturbs_nobody() {
        let now = Instant::now();
        let slot = Slot::sandboxes().next();
        let mut state = State { free: slot.into_iter().collect(), ..State::default() };
        assert!(matches!(state.next(0, now), Work::Nothing));
        state.last_taken = Some(now);
        assert!(matches!(state.next(1, now), Work::Wait(QUIET)));
        state.resting_until = Some(now + 4 * QUIET);
        assert!(matches!(state.next(1, now + QUIET), Work::Wait(time) if time == 3 * QUIET));
        // What was given back is removed meanwhile.
        state.returned.extend(Slot::sandboxes().nth(1).map(Returned::Slot));
        assert!(matches!(state.next(1, now + QUIET), Work::Clear(one) if one.len() == 1));
        state.holds = 1;
        assert!(matches!(state.next(1, now + 4 * QUIET), Work::Nothing));
        state.holds = 0;
        assert!(matches!(state.next(1, now + 4 * QUIET), Work::Make(made) if Some(made) == slot));
        assert!(matches!(state.next(1, now + 4 * QUIET), Work::Nothing), "no slot is left");
    }
}
