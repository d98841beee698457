//! A snapshot and the task that owns it: the process to fork from, and the files on disk.
//!
//! ```text
//!   Live ──▶ Persisting ──▶ Ready ◀─┐
//!    │           │            │     │ loaded for a fork,
//!    └───────────┴──▶ Failed  └─────┘ evicted when unused and memory is wanted
//! ```
//!
//! A live snapshot is written to disk in the background, at low priority unless a request waits for it. Until then it
//! can be forked from all the same; if writing it fails, it stays live.

pub(crate) mod build;
pub(crate) mod build_key;
mod compact;
pub(crate) mod derive;
pub(crate) mod evict;
mod fault_trace;
pub(crate) mod history;
pub(crate) mod make;
pub(crate) mod names;
pub(crate) mod once;
pub(crate) mod persist;
pub(crate) mod prefault;
pub(crate) mod prune;
pub(crate) mod remove;
pub(crate) mod retention;
pub mod travel;
pub(crate) mod verify;
mod writer;

use std::fs;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forkd_proto::causes::with_causes;
use forkd_proto::control::Event;
use forkd_store::Tag;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::blocking::in_place;
use crate::engine::{EngineEvent, PATIENCE, Shared};
use crate::error::EngineError;
use crate::fault;
use crate::limits::quota::of_zygote;
use crate::process::VmProcess;
use crate::process::stop::MUTE;
use crate::process::users::User;
use crate::record::{self, ZygoteRecord};
use crate::snapshot::prefault::Learning;
use crate::snapshot::writer::Awaited;

/// Requests that wait for their turn.
const QUEUE: usize = 64;
/// Between two checks whether it is still in use.
const LEASED: Duration = Duration::from_millis(5);
/// Between two notes on disk of when it was used last.
const NOTED: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotStatus {
    Live,
    Persisting,
    Ready,
    Failed,
}

/// A process to fork from. It is not ended while this is held.
#[derive(Debug)]
pub struct Zygote {
    pub process: VmProcess,
    pub record: ZygoteRecord,
}

impl Zygote {
    /// What a child is told to become: nothing, if it is that already.
    pub fn uid_for(&self, child: Option<&User>) -> Option<u32> {
        let trusted = self.process.user.as_ref().is_some_and(|user| user.trusted);
        child.filter(|_| trusted).map(User::uid)
    }
}

/// What is known of a snapshot.
#[derive(Debug, Clone)]
pub struct SnapshotView {
    pub record: ZygoteRecord,
    pub status: SnapshotStatus,
    /// Whether there is a process to fork from.
    pub loaded: bool,
    pub error: Option<String>,
}

/// The process of a snapshot, as those see it who do not need it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub pid: i32,
    /// The number of its last use.
    pub used: u64,
    pub leased: bool,
}

/// What the owner knows of its process. It is looked at without asking: an owner may be busy for long.
#[derive(Debug, Default)]
struct Residence {
    zygote: Weak<Zygote>,
    pid: i32,
    used: u64,
}

type Answer<T> = oneshot::Sender<Result<T, EngineError>>;

pub(crate) enum Request {
    Lease(Answer<Arc<Zygote>>),
    /// Ends the process, if it is unused and the snapshot is on disk.
    Evict(oneshot::Sender<bool>),
    Remove(Answer<()>),
    /// Its files need no other snapshot any more.
    Compacted(Answer<()>),
}

/// The way to a snapshot's owner.
#[derive(Debug, Clone)]
pub struct SnapshotHandle {
    requests: mpsc::Sender<Request>,
    view: watch::Receiver<SnapshotView>,
    residence: watch::Receiver<Residence>,
    /// Whether a request waits until it is on disk.
    awaited: watch::Sender<bool>,
}

impl SnapshotHandle {
    pub fn view(&self) -> SnapshotView {
        self.view.borrow().clone()
    }

    pub fn tag(&self) -> Tag {
        self.view.borrow().record.tag.clone()
    }

    /// The process to fork from, loaded from disk if it must be. It is not evicted while it is held.
    pub async fn lease(&self) -> Result<Arc<Zygote>, EngineError> {
        self.ask(Request::Lease).await
    }

    /// Waits until it is on disk, where it comes sooner for that.
    pub async fn durable(&self) -> Result<SnapshotView, EngineError> {
        self.hurry();
        self.settled().await
    }

    /// A request waits for it.
    pub(crate) fn hurry(&self) {
        self.awaited.send_replace(true);
    }

    /// The same without a hurry.
    pub(crate) async fn settled(&self) -> Result<SnapshotView, EngineError> {
        let mut view = self.view.clone();
        let settled = |view: &SnapshotView| match view.status {
            SnapshotStatus::Ready | SnapshotStatus::Failed => true,
            SnapshotStatus::Live => view.error.is_some(),
            SnapshotStatus::Persisting => false,
        };
        let view = view.wait_for(settled).await.map_err(|_| EngineError::Removed)?.clone();
        match (view.status, &view.error) {
            (SnapshotStatus::Ready, _) => Ok(view),
            (_, error) => Err(EngineError::Failed {
                tag: view.record.tag.clone(),
                reason: error.clone().unwrap_or_default(),
            }),
        }
    }

    /// Its process, if it has one.
    pub(crate) fn resident(&self) -> Option<Resident> {
        let Residence { zygote, pid, used } = &*self.residence.borrow();
        // The owner's, and those of leases.
        match zygote.strong_count() {
            0 => None,
            count => Some(Resident { pid: *pid, used: *used, leased: count > 1 }),
        }
    }

    /// Ends its process if it is unused. Says whether it had one.
    pub async fn evict(&self) -> bool {
        let (answer, answered) = oneshot::channel();
        self.requests.send(Request::Evict(answer)).await.is_ok() && answered.await.unwrap_or(false)
    }

    /// Removes it. The engine has made sure that nothing depends on it.
    pub(crate) async fn remove(&self) -> Result<(), EngineError> {
        self.ask(Request::Remove).await
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, EngineError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| EngineError::Removed)?;
        answered.await.map_err(|_| EngineError::Removed)?
    }
}

/// The owner.
struct Snapshot {
    shared: Arc<Shared>,
    record: ZygoteRecord,
    zygote: Option<Arc<Zygote>>,
    status: SnapshotStatus,
    error: Option<String>,
    /// When its last use was noted on disk.
    noted: Option<Instant>,
    /// The task that writes it, while it runs.
    writing: Option<Writing>,
    /// What its children use first is being learned. Dropped, it is given up.
    learning: Option<Learning>,
    view: watch::Sender<SnapshotView>,
    residence: watch::Sender<Residence>,
    awaited: watch::Sender<bool>,
    requests: mpsc::Receiver<Request>,
}

struct Writing {
    task: JoinHandle<Result<(), EngineError>>,
    /// Dropped, it is given up, unless it is past that.
    _wanted: oneshot::Sender<()>,
}

/// Gives a snapshot with a process its owner. Its events say nothing that its requests do not; they are read all the same,
/// or the process would wait for it.
pub(crate) fn own(
    shared: &Arc<Shared>,
    zygote: Arc<Zygote>,
    mut events: mpsc::Receiver<Event>,
    status: SnapshotStatus,
) -> SnapshotHandle {
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    own_with(shared, zygote.record.clone(), Some(zygote), status)
}

/// The same for one that is on disk only.
pub(crate) fn own_stored(shared: &Arc<Shared>, record: ZygoteRecord) -> SnapshotHandle {
    own_with(shared, record, None, SnapshotStatus::Ready)
}

fn own_with(
    shared: &Arc<Shared>,
    record: ZygoteRecord,
    zygote: Option<Arc<Zygote>>,
    status: SnapshotStatus,
) -> SnapshotHandle {
    let loaded = zygote.is_some();
    let (view, seen) = watch::channel(SnapshotView { record: record.clone(), status, loaded, error: None });
    let (residence, resident) = watch::channel(Residence::default());
    let (sender, requests) = mpsc::channel(QUEUE);
    let shared = Arc::clone(shared);
    let (error, writing, learning) = (None, None, None);
    let awaited = watch::Sender::new(false);
    let handle =
        SnapshotHandle { requests: sender, view: seen, residence: resident, awaited: awaited.clone() };
    let snapshot = Snapshot {
        shared,
        record,
        zygote,
        status,
        error,
        noted: None,
        writing,
        learning,
        view,
        residence,
        awaited,
        requests,
    };
    snapshot.used();
    tokio::spawn(snapshot.run());
    handle
}

impl Snapshot {
    async fn run(mut self) {
        self.tell();
        if self.status == SnapshotStatus::Live {
            self.write();
        } else {
            self.learn();
        }
        loop {
            let process = self.zygote.as_ref().map(|zygote| zygote.process.clone());
            let ended = async {
                match process {
                    Some(process) => process.ended().await,
                    None => std::future::pending().await,
                }
            };
            let written = async {
                match &mut self.writing {
                    Some(writing) => (&mut writing.task).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                written = written => {
                    self.writing = None;
                    self.written(written.unwrap_or_else(|_| Err(EngineError::Removed)));
                }
                () = ended => self.gone().await,
                request = self.requests.recv() => match request {
                    // The engine is gone; its processes are not.
                    None => return,
                    Some(Request::Lease(answer)) => {
                        let lease = self.lease().await;
                        let _ = answer.send(lease);
                    }
                    Some(Request::Evict(answer)) => {
                        let _ = answer.send(self.evict().await);
                    }
                    Some(Request::Compacted(answer)) => {
                        let _ = answer.send(self.compacted());
                    }
                    Some(Request::Remove(answer)) => {
                        match self.remove_files().await {
                            Ok(()) => {
                                fault::place("remove.files");
                                self.close().await;
                                let _ = answer.send(Ok(()));
                                return;
                            }
                            Err(error) => drop(answer.send(Err(error))),
                        }
                    }
                },
            }
        }
    }

    fn write(&mut self) {
        if let Some(zygote) = &self.zygote {
            let (shared, zygote) = (Arc::clone(&self.shared), Arc::clone(zygote));
            let (wanted, unwanted) = oneshot::channel();
            let awaited = Awaited::new(self.awaited.subscribe());
            let task =
                tokio::spawn(async move { persist::persist(&shared, &zygote, &awaited, unwanted).await });
            self.writing = Some(Writing { task, _wanted: wanted });
            self.become_(SnapshotStatus::Persisting);
        }
    }

    /// What its children use first: for a process that is there, of a snapshot that is on disk.
    fn learn(&mut self) {
        self.learning = self.zygote.as_ref().and_then(|zygote| prefault::begin(&self.shared, zygote));
    }

    fn written(&mut self, written: Result<(), EngineError>) {
        match written {
            Ok(()) => {
                self.become_(SnapshotStatus::Ready);
                self.learn();
            }
            Err(error) => {
                self.error = Some(with_causes(&error));
                let status =
                    if self.zygote.is_some() { SnapshotStatus::Live } else { SnapshotStatus::Failed };
                self.become_(status);
            }
        }
    }

    /// Its process has ended unexpectedly. With files, the next lease makes another.
    async fn gone(&mut self) {
        self.zygote = None;
        self.forget_process().await;
        if self.status == SnapshotStatus::Live {
            self.error = Some("its process was killed before it was on disk".into());
            self.become_(SnapshotStatus::Failed);
        } else {
            self.show();
        }
    }

    async fn lease(&mut self) -> Result<Arc<Zygote>, EngineError> {
        if let Some(zygote) = &self.zygote {
            let lease = Arc::clone(zygote);
            self.used();
            self.note_use();
            return Ok(lease);
        }
        if self.status != SnapshotStatus::Ready {
            let reason = self.error.clone().unwrap_or_else(|| "it has no process and no files".into());
            return Err(EngineError::Failed { tag: self.record.tag.clone(), reason });
        }
        let (process, mut events) = persist::load(&self.shared, &self.record).await?;
        tokio::spawn(async move { while events.recv().await.is_some() {} });
        let zygote = Arc::new(Zygote { process, record: self.record.clone() });
        self.zygote = Some(Arc::clone(&zygote));
        // Before its first child.
        if !prefault::tell_known(&self.shared, &zygote).await {
            self.learn();
        }
        self.used();
        self.note_use();
        self.show();
        self.announce(EngineEvent::Loaded(self.record.tag.clone()));
        Ok(zygote)
    }

    /// Its process has a use that is now.
    fn used(&self) {
        let used = self.shared.next_use();
        let resident = self.zygote.as_ref().map(|zygote| {
            let pid = zygote.process.pid;
            Residence { zygote: Arc::downgrade(zygote), pid, used }
        });
        self.residence.send_replace(resident.unwrap_or_default());
    }

    /// It is forked: the time is kept on disk, but not for every fork.
    fn note_use(&mut self) {
        if self.noted.is_none_or(|noted| noted.elapsed() >= NOTED) {
            self.noted = Some(Instant::now());
            let (shared, tag) = (Arc::clone(&self.shared), self.record.tag.clone());
            tokio::task::spawn_blocking(move || shared.note_use(&tag));
        }
    }

    /// The caller needs its memory: the process has ended when this returns.
    async fn evict(&mut self) -> bool {
        if self.status != SnapshotStatus::Ready {
            return false;
        }
        let Some(zygote) = self.zygote.take() else { return false };
        match Arc::try_unwrap(zygote) {
            Ok(zygote) => zygote.process.end().await,
            Err(leased) => {
                self.zygote = Some(leased);
                return false;
            }
        }
        fault::place("evict.ended");
        self.end_process().await;
        self.show();
        self.announce(EngineEvent::Evicted(self.record.tag.clone()));
        true
    }

    async fn end_process(&mut self) {
        if let Some(zygote) = self.zygote.take() {
            zygote.process.kill();
        }
        self.forget_process().await;
    }

    /// Removes what a process had that has ended or is about to.
    async fn forget_process(&mut self) {
        let cgroup = of_zygote(&self.record);
        self.record = self.record.clone().without_process();
        let _ = in_place(|| fs::remove_dir_all(self.shared.paths.zygote(&self.record.tag)));
        self.shared.kill_all(&cgroup);
        self.shared.leave(cgroup).await;
    }

    /// It is no change of another one any more.
    fn compacted(&mut self) -> Result<(), EngineError> {
        self.record.parent = None;
        self.show();
        if let Some(zygote) = &self.zygote {
            // A daemon that finds the process looks at the files, too, so this may be lost.
            let record = ZygoteRecord { parent: None, ..zygote.record.clone() };
            record::write(&self.shared.paths.zygote(&record.tag), &record)?;
        }
        Ok(())
    }

    /// Takes it from the disk, where it may be about to appear.
    async fn remove_files(&mut self) -> Result<(), EngineError> {
        self.learning = None;
        if let Some(Writing { task, _wanted }) = self.writing.take() {
            drop(_wanted);
            let _ = task.await;
        }
        in_place(|| match self.shared.store.path(&self.record.tag).exists() {
            true => Ok(self.shared.store.remove(&self.record.tag)?),
            false => Ok(()),
        })
    }

    /// The end of what it has in memory.
    async fn close(mut self) {
        if let Some(zygote) = self.zygote.take() {
            // Running forks of it are completed first, unless they hang. No new lease is given.
            let (begun, control) = (Instant::now(), &zygote.process.control);
            while Arc::strong_count(&zygote) > 1 && begun.elapsed() < PATIENCE && control.stuck_for() < MUTE {
                tokio::time::sleep(LEASED).await;
            }
            zygote.process.end().await;
        }
        self.end_process().await;
        self.shared.snapshots.remove(&self.record.tag);
        in_place(|| self.shared.names.forget(&self.record));
        self.announce(EngineEvent::SnapshotRemoved(self.record.tag.clone()));
    }

    fn show(&self) {
        let (record, error) = (self.record.clone(), self.error.clone());
        let loaded = self.zygote.is_some();
        self.view.send_replace(SnapshotView { record, status: self.status, loaded, error });
    }

    fn tell(&self) {
        self.announce(EngineEvent::Snapshot(self.record.tag.clone(), self.status));
    }

    fn announce(&self, what: EngineEvent) {
        self.shared.tell(&self.record.project, what);
    }

    fn become_(&mut self, status: SnapshotStatus) {
        self.status = status;
        self.show();
        self.tell();
    }
}
