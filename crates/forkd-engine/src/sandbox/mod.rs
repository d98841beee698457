//! A sandbox and the task that owns it.
//!
//! ```text
//!   Starting ──▶ Running ◀──▶ Paused
//!      │            │            │
//!      └────────────┴─────┬──────┘   its process ends, or its time is over
//!                         ▼
//!                       Ended ──▶ removed: when asked, or after a while
//! ```
//!
//! When it runs, and for how long, is in `lifetime.rs`.
//!
//! What its process says outranks requests: a request to a VM that has ended is answered with that.

pub(crate) mod branch;
pub(crate) mod charge;
pub(crate) mod create;
pub(crate) mod end;
pub(crate) mod forked;
pub(crate) mod laps;
pub(crate) mod leftovers;
pub(crate) mod lifetime;
pub(crate) mod promise;
pub(crate) mod rollback;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_proto::control::{Event, ExitReason, KvmCounts};
use forkd_store::Tag;
use tokio::sync::{mpsc, oneshot, watch};

use crate::agent::Agent;
use crate::blocking::in_place;
use crate::disk::merge::{Merged, Merging};
use crate::engine::{EngineEvent, Shared, unix_ms};
use crate::error::EngineError;
use crate::fault;
use crate::guest::Guest;
use crate::ids::{LayerId, SandboxId};
use crate::kernel_panic;
use crate::limits::cgroup::OutOfMemory;
use crate::limits::owner::Owner;
use crate::limits::quota::of_sandbox;
use crate::network::NetworkChange;
use crate::process::control::CallError;
use crate::process::descriptors::{SERIAL_LOG, VSOCK};
use crate::process::{COUNTED, VmProcess, WithEvents};
use crate::record::{self, SandboxRecord};
use crate::sandbox::branch::{BranchOrder, Branched, Derived};
use crate::sandbox::end::is_ending;
use crate::sandbox::laps::Laps;
use crate::sandbox::leftovers::Leftovers;
use crate::sandbox::lifetime::Expiry;
use crate::sandbox::promise::Promise;
use crate::snapshot::SnapshotHandle;

/// How long it is known that a sandbox has ended.
const REMEMBERED: Duration = Duration::from_secs(600);
/// How long a request may still run in a sandbox that is to be removed.
const LAST_WORDS: Duration = Duration::from_secs(3);
/// Requests that wait for their turn.
const QUEUE: usize = 16;
/// The state of one that cannot do anything any more.
pub(crate) const ENDED: &str = "ended";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxState {
    Starting,
    Running,
    Paused,
    Ended,
}

/// Why and when it has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub reason: EndReason,
    pub detail: String,
    pub at_unix_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    Shutdown,
    Reset,
    KernelPanic,
    Failed,
    Killed,
    OutOfMemory,
    Expired,
}

/// What is known of a sandbox.
#[derive(Debug, Clone)]
pub struct SandboxView {
    pub record: SandboxRecord,
    pub state: SandboxState,
    pub pid: i32,
    pub end: Option<End>,
}

type Answer<T> = oneshot::Sender<Result<T, EngineError>>;

pub(crate) enum Request {
    /// Its requester is about to learn of it: it is a sandbox from now on. That is written down for all that were asked for.
    Promise(Arc<Promise>, Answer<SandboxView>),
    Pause(Answer<()>),
    Resume(Answer<bool>),
    Suspend(Answer<bool>),
    Wake(Option<u64>, Answer<bool>),
    SetExpiry(Expiry, Answer<()>),
    ChangeNetwork(NetworkChange, Answer<()>),
    LoseNetwork(Answer<()>),
    Count(Answer<Option<KvmCounts>>),
    Branch(BranchOrder, Answer<Branched>),
    Rollback(Tag, Answer<()>),
    /// The end of a rollback that another daemon has begun.
    Identify(Answer<()>),
    /// The end of a branch that another daemon has begun, as far as limits are concerned.
    RestoreLimits,
    /// Its own: layers of its disk have become one.
    Merged(Result<Merged, EngineError>),
    /// Its own: its time is over.
    Expire,
}

/// The way to a sandbox's owner.
#[derive(Debug, Clone)]
pub struct SandboxHandle {
    requests: mpsc::Sender<Request>,
    view: watch::Receiver<SandboxView>,
    /// Beside the requests, which may wait for a process that does not answer.
    doom: watch::Sender<bool>,
    stopping: watch::Receiver<bool>,
    agent: Agent,
}

impl SandboxHandle {
    pub fn view(&self) -> SandboxView {
        self.view.borrow().clone()
    }

    /// What it is from now on, whenever that changes.
    pub fn watch(&self) -> watch::Receiver<SandboxView> {
        self.view.clone()
    }

    /// The agent in the guest, if it has one. Asked directly: it knows best what it can do at once.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The agent of a guest that can answer.
    pub fn answering_agent(&self) -> Result<&Agent, EngineError> {
        let view = self.view.borrow();
        match view.state {
            SandboxState::Starting => Err(EngineError::WrongState("starting")),
            SandboxState::Paused => Err(EngineError::WrongState("paused")),
            SandboxState::Ended => Err(EngineError::WrongState(ENDED)),
            SandboxState::Running if view.record.shape.devices.vsock.is_none() => {
                Err(EngineError::WrongState(crate::error::NO_AGENT))
            }
            SandboxState::Running => Ok(&self.agent),
        }
    }

    /// Changes what it may reach, from one packet to the next.
    pub async fn change_network(&self, change: NetworkChange) -> Result<(), EngineError> {
        self.ask(|answer| Request::ChangeNetwork(change, answer)).await
    }

    /// What KVM has counted of its guest, unless its process takes long to say.
    pub(crate) async fn kvm_counts(&self) -> Option<KvmCounts> {
        tokio::time::timeout(COUNTED, self.ask(Request::Count)).await.ok()?.ok()?
    }

    /// Branches it. The snapshot can be forked from when this returns, and is on disk later.
    pub async fn branch(&self, tag: Option<Tag>) -> Result<SnapshotHandle, EngineError> {
        Ok(self.branch_for(tag, None).await?.snapshot)
    }

    /// The same for an owner, within its limits.
    pub async fn branch_for(&self, tag: Option<Tag>, owner: Option<Owner>) -> Result<Branched, EngineError> {
        let (kept, derived, laps) = (true, None, Laps::since(Instant::now()));
        self.ask(|answer| Request::Branch(BranchOrder { tag, owner, kept, derived, laps }, answer)).await
    }

    /// Makes a branch that is not listed among the sandbox's own.
    pub(crate) async fn branch_for_copies(&self, owner: Option<Owner>) -> Result<Branched, EngineError> {
        let (kept, derived, laps) = (false, None, Laps::since(Instant::now()));
        let order = BranchOrder { tag: None, owner, kept, derived, laps };
        self.ask(|answer| Request::Branch(order, answer)).await
    }

    /// Makes a snapshot that is not a branch of the sandbox's.
    pub(crate) async fn branch_derived(&self, derived: Derived) -> Result<Branched, EngineError> {
        let (kept, derived, laps) = (false, Some(Box::new(derived)), Laps::since(Instant::now()));
        let order = BranchOrder { tag: None, owner: None, kept, derived, laps };
        self.ask(|answer| Request::Branch(order, answer)).await
    }

    /// Takes it back to one of its own branches.
    pub async fn rollback(&self, tag: Tag) -> Result<(), EngineError> {
        self.ask(|answer| Request::Rollback(tag, answer)).await
    }

    /// Ends it and forgets it, whatever else it was asked for.
    pub async fn remove(&self) -> Result<(), EngineError> {
        let was_there = !self.requests.is_closed();
        let first = self.doom.send_if_modified(|doomed| !std::mem::replace(doomed, true));
        self.requests.closed().await;
        if was_there && first { Ok(()) } else { Err(EngineError::Removed) }
    }

    pub(crate) async fn promise(&self, promise: Arc<Promise>) -> Result<SandboxView, EngineError> {
        self.ask(|answer| Request::Promise(promise, answer)).await
    }

    /// Has the owner put limits right that a branch has raised. One that is busy is asked again by the next sweep.
    pub(crate) fn restore_limits(&self) {
        let _ = self.requests.try_send(Request::RestoreLimits);
    }

    pub(crate) async fn lose_network(&self) -> Result<(), EngineError> {
        self.ask(Request::LoseNetwork).await
    }

    pub(crate) async fn identify(&self) -> Result<(), EngineError> {
        self.ask(Request::Identify).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, EngineError> {
        let ended_before = self.view.borrow().state == SandboxState::Ended;
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| EngineError::Removed)?;
        let unanswered = |_| match *self.stopping.borrow() {
            true => EngineError::Stopping,
            false => EngineError::Removed,
        };
        match answered.await.map_err(unanswered)? {
            Err(EngineError::WrongState(ENDED)) if !ended_before => {
                Err(EngineError::EndedMeanwhile(self.end().await))
            }
            answer => answer,
        }
    }
}

/// What became of a request.
enum Served {
    Done,
    /// The daemon is to stop, and the process does not answer.
    Stuck,
}

/// The owner.
pub(crate) struct Sandbox {
    pub shared: Arc<Shared>,
    pub directory: PathBuf,
    pub record: SandboxRecord,
    pub process: VmProcess,
    pub events: mpsc::Receiver<Event>,
    pub state: SandboxState,
    /// Whether the guest's kernel has said that it panics. It resets the VM next.
    panicked: bool,
    end: Option<End>,
    pub merging: Merging,
    /// What says that it is promised, if its record does not.
    promise: Option<Arc<Promise>>,
    /// Layers that no process can write to, as far as this daemon has looked.
    pub sealed: BTreeSet<LayerId>,
    view: watch::Sender<SandboxView>,
    doom: watch::Receiver<bool>,
    requests: mpsc::Receiver<Request>,
}

/// Gives a sandbox its owner.
pub(crate) fn own(
    shared: &Arc<Shared>,
    record: SandboxRecord,
    process: WithEvents,
    state: SandboxState,
) -> SandboxHandle {
    let (process, events) = process;
    let directory = shared.paths.sandbox(&record.id);
    let first = SandboxView { record: record.clone(), state, pid: process.pid, end: None };
    let (view, seen) = watch::channel(first);
    let (doom, doomed) = watch::channel(false);
    let (sender, requests) = mpsc::channel(QUEUE);
    let agent = Agent::new(Guest::new(directory.join(VSOCK)));
    let stopping = shared.stopping.subscribe();
    let shared = Arc::clone(shared);
    let (panicked, end, promise) = (false, None, None);
    let (merging, sealed) = (Merging::default(), BTreeSet::new());
    let sandbox = Sandbox {
        shared,
        directory,
        record,
        process,
        events,
        state,
        panicked,
        end,
        merging,
        promise,
        sealed,
        view,
        doom: doomed,
        requests,
    };
    tokio::spawn(sandbox.run());
    SandboxHandle { requests: sender, view: seen, doom, stopping, agent }
}

impl Sandbox {
    async fn run(mut self) {
        loop {
            let ended = self.state == SandboxState::Ended;
            let timer = sleep_until(self.next_deadline());
            tokio::select! {
                biased;
                event = self.events.recv(), if !ended => match event {
                    Some(event) => self.handle_event(event),
                    None => self.lost().await,
                },
                () = self.process.ended(), if !ended => self.ended(),
                () = is_doomed(&mut self.doom) => return self.forget().await,
                merged = self.merging.done(), if !ended => {
                    if let Served::Stuck = self.serve_while_wanted(Request::Merged(merged)).await {
                        return self.stay().await;
                    }
                }
                request = self.requests.recv() => {
                    // The engine is gone; VMs are not.
                    let Some(request) = request else { return };
                    if let Served::Stuck = self.serve_while_wanted(request).await {
                        return self.stay().await;
                    }
                }
                () = timer => match ended {
                    true => return self.forget().await,
                    false => {
                        if let Served::Stuck = self.serve_while_wanted(Request::Expire).await {
                            return self.stay().await;
                        }
                    }
                },
            }
        }
    }

    /// Refuses everything until the daemon has ended: what the process was told to do last may be half done.
    async fn stay(mut self) {
        loop {
            tokio::select! {
                () = is_doomed(&mut self.doom) => return self.forget().await,
                request = self.requests.recv() => if request.is_none() { return },
            }
        }
    }

    /// When the next timed change is due.
    fn next_deadline(&self) -> Option<u64> {
        match &self.end {
            Some(end) => Some(end.at_unix_ms + u64::try_from(REMEMBERED.as_millis()).unwrap_or(u64::MAX)),
            None => self.record.expires_unix_ms,
        }
    }

    /// Serves a request. If the sandbox is to be removed meanwhile, or its time is over, its process is ended first: that also
    /// ends whatever waits for it.
    async fn serve_while_wanted(&mut self, request: Request) -> Served {
        let (process, mut doom) = (self.process.clone(), self.doom.clone());
        let (shared, cgroup) = (Arc::clone(&self.shared), of_sandbox(&self.record));
        let over = if self.record.pauses_at_expiry { None } else { self.next_deadline() };
        let mut serving = std::pin::pin!(self.serve(request));
        tokio::select! {
            biased;
            () = &mut serving => return Served::Done,
            () = is_doomed(&mut doom) => {}
            () = sleep_until(over) => {}
            () = shared.gives_up(&process) => return Served::Stuck,
        }
        process.kill();
        // A rollback has two processes.
        shared.kill_all(&cgroup);
        let _ = tokio::time::timeout(LAST_WORDS, serving).await;
        Served::Done
    }

    /// Serves a request.
    async fn serve(&mut self, request: Request) {
        match request {
            Request::Promise(promise, answer) => {
                let promised = self.keep(promise);
                let _ = answer.send(promised);
            }
            Request::Count(answer) => {
                let process = self.process.clone();
                // No other task waits for that.
                tokio::spawn(async move { answer.send(Ok(process.kvm_counts().await)) });
            }
            Request::Pause(answer) => {
                let paused = self.pause().await;
                let _ = answer.send(self.or_ended(paused).await);
            }
            Request::Resume(answer) => {
                let resumed = self.resume().await;
                let _ = answer.send(self.or_ended(resumed).await);
            }
            Request::Suspend(answer) => {
                let suspended = self.suspend().await;
                let _ = answer.send(self.or_ended(suspended).await);
            }
            Request::Wake(expires, answer) => {
                let woken = self.wake(expires).await;
                let _ = answer.send(self.or_ended(woken).await);
            }
            Request::SetExpiry(expiry, answer) => {
                let set = self.set_expiry(expiry);
                let _ = answer.send(set);
            }
            Request::ChangeNetwork(change, answer) => {
                let changed = self.change_network(change).await;
                let _ = answer.send(changed);
            }
            Request::LoseNetwork(answer) => {
                let lost = self.lose_network();
                let _ = answer.send(lost);
            }
            Request::Branch(order, answer) => {
                let branched = self.branch(order).await;
                let branched = self.or_ended(branched).await;
                let worked = branched.is_ok();
                let _ = answer.send(branched);
                if worked {
                    self.begin_merge().await;
                }
            }
            Request::Rollback(tag, answer) => {
                let back = self.rollback(tag).await;
                let _ = answer.send(self.or_ended(back).await);
            }
            Request::RestoreLimits => self.restore_limits(),
            Request::Merged(merged) => self.end_merge(merged).await,
            Request::Expire => self.expire().await,
            Request::Identify(answer) => {
                let identified = self.finish_rollback().await;
                let _ = answer.send(identified);
            }
        }
    }

    fn keep(&mut self, promise: Arc<Promise>) -> Result<SandboxView, EngineError> {
        self.promise = Some(promise);
        self.check_alive()?;
        // Its own record says so when it is written the next time.
        self.record.promised = true;
        self.become_(SandboxState::Running);
        Ok(self.view.borrow().clone())
    }

    pub fn check_alive(&self) -> Result<(), EngineError> {
        match self.state {
            SandboxState::Running | SandboxState::Paused | SandboxState::Starting => Ok(()),
            SandboxState::Ended => Err(EngineError::WrongState(ENDED)),
        }
    }

    /// The answer to a request that needs the VM process. If that has ended meanwhile, this is why it failed. One that does not
    /// answer is of no use any more: its state is unknown.
    async fn or_ended<T>(&mut self, answer: Result<T, EngineError>) -> Result<T, EngineError> {
        match answer {
            Err(EngineError::Call(error @ CallError::Timeout { .. })) => {
                self.finish(EndReason::Failed, error.to_string());
                self.process.kill();
                Err(EngineError::WrongState(ENDED))
            }
            Err(error @ EngineError::LayerKept(_)) => {
                // Nothing that it says or writes can be relied on.
                self.finish(EndReason::Failed, error.to_string());
                self.process.kill();
                self.shared.kill_all(&of_sandbox(&self.record));
                Err(EngineError::WrongState(ENDED))
            }
            Err(EngineError::Call(_) | EngineError::Cgroup(_)) if is_ending(self.process.pid) => {
                self.process.gone().await;
                self.ended();
                Err(EngineError::WrongState(ENDED))
            }
            answer => answer,
        }
    }

    /// Writes down what is known, and shows it.
    pub fn save(&self) -> Result<(), EngineError> {
        record::write(&self.directory, &self.record)?;
        self.show();
        Ok(())
    }

    fn show(&self) {
        let (record, end) = (self.record.clone(), self.end.clone());
        self.view.send_replace(SandboxView { record, state: self.state, pid: self.process.pid, end });
    }

    pub fn become_(&mut self, state: SandboxState) {
        self.state = state;
        self.show();
        self.tell(EngineEvent::Sandbox(self.record.id.clone(), state));
    }

    pub(crate) fn tell(&self, what: EngineEvent) {
        // Clients do not know of one that is not listed.
        if self.shared.unlisted.has(&self.record.id) {
            return;
        }
        self.shared.tell(&self.record.project, what);
    }

    /// An event of its process.
    fn handle_event(&mut self, event: Event) {
        let id = || self.record.id.clone();
        match event {
            Event::Panicked => {
                self.panicked = true;
                self.tell(EngineEvent::Panicked(id()));
            }
            Event::OutOfDisk { limit_bytes, .. } => self.tell(EngineEvent::OutOfDisk(id(), limit_bytes)),
            Event::Exited { reason: ExitReason::Reset, .. } if self.panicked => {
                let described = in_place(|| kernel_panic::described(&self.directory.join(SERIAL_LOG)));
                let detail = described.unwrap_or_else(|| "no reason on its console".into());
                self.finish(EndReason::KernelPanic, detail);
            }
            Event::Exited { stage, reason, detail } => {
                let reason = match reason {
                    ExitReason::Shutdown => EndReason::Shutdown,
                    ExitReason::Reset => EndReason::Reset,
                    ExitReason::Error => EndReason::Failed,
                };
                self.finish(reason, format!("{detail} ({stage:?})"));
            }
            // The answers to requests that are waited for where they are made.
            Event::Running | Event::Zygote | Event::Persisted(_) | Event::Kept => {}
        }
    }

    /// Nothing is heard of its process any more: it has ended, or closed its control socket.
    async fn lost(&mut self) {
        match tokio::time::timeout(LAST_WORDS, self.process.ended()).await {
            Ok(()) => self.ended(),
            Err(_) => {
                self.finish(EndReason::Failed, "its process has closed its control socket".into());
                self.process.kill();
            }
        }
    }

    /// Its process has ended, with last words or without.
    fn ended(&mut self) {
        // Last words may have come before the end was seen.
        while let Ok(event) = self.events.try_recv() {
            self.handle_event(event);
        }
        if self.state != SandboxState::Ended {
            let (reason, detail) = self.killed();
            self.finish(reason, detail);
        }
    }

    /// Why, if it could say nothing.
    fn killed(&self) -> (EndReason, String) {
        let cgroups = self.shared.cgroups.as_ref();
        match cgroups.and_then(|cgroups| cgroups.out_of_memory(&of_sandbox(&self.record))) {
            Some(OutOfMemory { limit_bytes, peak_bytes }) => {
                let (limit, peak) = (limit_bytes >> 20, peak_bytes >> 20);
                (EndReason::OutOfMemory, format!("limit {limit} MiB, peak {peak} MiB"))
            }
            None => (EndReason::Killed, "its process was killed".into()),
        }
    }

    fn finish(&mut self, reason: EndReason, detail: String) {
        if self.state == SandboxState::Ended {
            return;
        }
        self.end = Some(End { reason, detail, at_unix_ms: unix_ms() });
        self.leave_network();
        self.become_(SandboxState::Ended);
    }

    /// Ends the process, if it has not ended. From then on there is no such sandbox; its remains are cleared later.
    async fn forget(self) {
        self.shared.kill_all(&of_sandbox(&self.record));
        self.process.end().await;
        fault::place("remove.ended");
        let Sandbox { shared, record, process, promise, .. } = self;
        // Clients were not told of one that is not listed.
        if shared.sandboxes.has(&record.id) {
            shared.sandboxes.remove(&record.id);
            shared.tell(&record.project, EngineEvent::SandboxRemoved(record.id.clone()));
        }
        Leftovers { record, promise, _user: process.user.clone() }.clear_later(&shared);
    }
}

/// Waits until it is to be removed.
async fn is_doomed(doom: &mut watch::Receiver<bool>) {
    if doom.wait_for(|doomed| *doomed).await.is_err() {
        // There is no owner left to report it.
        std::future::pending::<()>().await;
    }
}

/// Waits until a time of day; for ever without one.
async fn sleep_until(unix_ms_: Option<u64>) {
    match unix_ms_ {
        Some(at) => tokio::time::sleep(Duration::from_millis(at.saturating_sub(unix_ms()))).await,
        None => std::future::pending().await,
    }
}

impl SandboxView {
    pub fn id(&self) -> &SandboxId {
        &self.record.id
    }
}
