//! One sandbox on its way: prepared, forked, given its identity, promised. Until then it has no owner, and is removed when dropped.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use forkd_proto::agent::account::Account;
use forkd_proto::control::{Command, Descriptor, Event, Fork, Reply};

use tokio::sync::OwnedSemaphorePermit;

use crate::agent::Agent;
use crate::blocking::in_place;
use crate::engine::{PATIENCE, Shared, unix_ms};
use crate::error::EngineError;
use crate::fault;
use crate::guest::Guest;
use crate::identity::{self, Given, Identity};
use crate::ids::{LayerId, SandboxId};
use crate::limits::quota::{of_sandbox, quota};
use crate::limits::usage::Usage;
use crate::paths::PathError;
use crate::process::descriptors::{self, Named};
use crate::process::users::User;
use crate::process::{ProcessError, VmProcess, WithEvents, listen_in};
use crate::record::{self, DiskRecord, SandboxRecord, WakeRecord};
use crate::registry::Reservation;
use crate::sandbox::create::NewSandboxes;
use crate::sandbox::laps::{CreateStep, Laps};
use crate::sandbox::lifetime::OnExpiry;
use crate::sandbox::promise::Promise;
use crate::sandbox::{self, SandboxHandle, SandboxState, SandboxView};
use crate::snapshot::Zygote;

/// The name of a sandbox that is being made.
pub(crate) type Name = Reservation<SandboxId, SandboxHandle>;

/// All that a VM needs but its process.
pub(crate) struct Prepared {
    forked: Forked,
    user: Option<User>,
    command: Command,
    descriptors: Vec<OwnedFd>,
}

/// A running VM without an owner. It is removed when dropped.
pub(crate) struct Forked {
    pub shared: Arc<Shared>,
    pub record: SandboxRecord,
    process: Option<WithEvents>,
    name: Option<Name>,
    /// Whether it stays as it is, for the next daemon: a process that does not answer may still make it.
    is_left: bool,
    /// When its guest began to run, if programs run in it before it has an identity.
    running_since: Option<Instant>,
    pub laps: Laps,
}

impl Prepared {
    /// Its network, directory, disks and cgroup; written down before any of it can be lost.
    pub async fn make(
        shared: Arc<Shared>,
        zygote: &Zygote,
        new: NewSandboxes,
        group: Option<SandboxId>,
        name: Name,
        mut laps: Laps,
    ) -> Result<Prepared, EngineError> {
        forkd_proto::passes!();
        let id = name.get().clone();
        let parent = zygote.record.clone();
        let user = shared.users.of_child(zygote.process.user.as_ref()).map_err(ProcessError::from)?;
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
            pauses_at_expiry: new.on_expiry == OnExpiry::Pause,
            wake: new.wake_on_traffic.then(|| WakeRecord { ttl_secs: new.ttl.map(|ttl| ttl.as_secs()) }),
            project: new.owner.as_ref().map(|owner| owner.project.clone()).unwrap_or_default(),
            owner: new.owner.map(|owner| owner.name),
            disks: Vec::new(),
            user: user.as_ref().map(User::record),
            network: None,
            quota: shared.cgroups.is_some().then(|| quota(&parent.shape, &new.limits)),
            cgroup: None,
            cpu_us_before: 0,
            shape: parent.shape,
            branches: Vec::new(),
            branches_made: 0,
            generation: parent.generation + 1,
            promised: false,
            group,
            rolling_back: None,
            changing: None,
        };
        let (process, name) = (None, Some(name));
        laps.end(CreateStep::Prepare);
        let mut forked = Forked { shared, record, process, name, is_left: false, running_since: None, laps };
        let root = forked.record.shape.devices.disks.first_mut();
        if let (Some(disk), Some(bytes)) = (root, new.limits.disk_bytes) {
            disk.limit_bytes = bytes;
        }
        let devices = forked.record.shape.devices.clone();
        let networks = &forked.shared.networks;
        let policy = networks.policy(&new.network, parent.policy.as_ref());
        let mut tap = None;
        if let Some((network, its_tap)) = networks.take(&forked.record.id, &devices, policy).await? {
            forked.record.network = Some(network);
            tap = Some(its_tap);
        }
        forked.laps.end(CreateStep::Network);
        let shared = Arc::clone(&forked.shared);
        // All of a thousand at once would be a thread each, which wait for the same locks of the kernel.
        let _turn = shared.preparing.acquire().await;
        forked.laps.end(CreateStep::Turn);
        let (named, cgroup) = in_place(|| forked.write(parent.disks, tap))?;
        let order = Fork { cgroup, successor: false, uid: zygote.uid_for(user.as_ref()), devices };
        let command = Command::Fork(order);
        let descriptors = named.for_command(&command);
        Ok(Prepared { forked, user, command, descriptors })
    }

    /// Waits until it may be forked: when all are prepared that are made with it, and few others are on their way.
    pub async fn turn(&mut self) -> Option<OwnedSemaphorePermit> {
        self.forked.laps.end(CreateStep::Prepared);
        // It is never closed.
        Arc::clone(&self.forked.shared.coming_up).acquire_owned().await.ok()
    }

    /// Forks the VM and waits until it runs.
    pub async fn start(self, zygote: &Zygote) -> Result<Forked, EngineError> {
        let Prepared { mut forked, user, command, descriptors } = self;
        forked.laps.end(CreateStep::ForkTurn);
        let directory = forked.shared.paths.sandbox(&forked.record.id);
        let shared = Arc::clone(&forked.shared);
        let answer = shared.call(&zygote.process, command, &descriptors).await;
        drop(descriptors);
        if let Err(EngineError::Stopping) = answer {
            forked.is_left = true;
        } else if answer.is_err() {
            // The zygote may have died between the two.
            VmProcess::end_stray(&directory).await;
        }
        let (reply, mut pidfds) = answer?;
        let (Reply::Forked { pid }, Some(pidfd)) = (reply.clone(), pidfds.pop()) else {
            return Err(EngineError::Answer(reply));
        };
        forked.laps.end(CreateStep::Fork);
        fault::place("create.forked");
        let taken = VmProcess::take(&directory, zygote.process.pid, pid, pidfd);
        if taken.is_err() {
            // There may be one all the same.
            VmProcess::end_stray(&directory).await;
        }
        let process = forked.process.insert(taken?);
        process.0.user = user;
        match tokio::time::timeout(PATIENCE, process.1.recv()).await {
            Ok(Some(Event::Running)) => {
                forked.laps.end(CreateStep::Running);
                // Programs of a snapshot that was made are frozen.
                forked.running_since = zygote.record.branched_from.as_ref().map(|_| Instant::now());
                Ok(forked)
            }
            Ok(other) => Err(EngineError::Ended(format!("{other:?}"))),
            Err(_) => Err(EngineError::Timeout),
        }
    }
}

impl Forked {
    /// All of its files, and whether a cgroup is among them.
    fn write(
        &mut self,
        disks: Vec<Vec<LayerId>>,
        tap: Option<OwnedFd>,
    ) -> Result<(Named, bool), EngineError> {
        let directory = self.shared.paths.sandbox(&self.record.id);
        fs::create_dir(&directory).map_err(PathError::at("create", &directory))?;
        let devices = &self.record.shape.devices;
        let mut named = Named::of_vm(devices, &directory)?.with(Descriptor::Control, listen_in(&directory)?);
        let tops = self.shared.new_tops(&devices.disks)?;
        for (frozen, (top, file)) in disks.into_iter().zip(tops) {
            self.record.disks.push(DiskRecord::new(frozen, top));
            named = named.with(Descriptor::DiskTop, file);
        }
        if let Some(tap) = tap {
            named = named.with(Descriptor::Tap, tap);
        }
        record::write(&directory, &self.record)?;
        fault::place("create.written");
        self.laps.end(CreateStep::Files);
        let with_cgroup = self.shared.with_cgroup(named, &self.record)?;
        self.laps.end(CreateStep::Cgroup);
        Ok(with_cgroup)
    }

    /// What it uses so far.
    pub async fn usage(&self) -> Result<Usage, EngineError> {
        let (process, _) = self.process.as_ref().ok_or(EngineError::Removed)?;
        let usage = self.shared.usage_of(&self.record, process.pid, process.kvm_counts().await);
        usage.await.map_err(EngineError::io("read what the VM process uses"))
    }

    pub fn process(&self) -> Option<&VmProcess> {
        self.process.as_ref().map(|(process, _)| process)
    }

    /// The agent in its guest.
    pub fn agent(&self) -> Agent {
        let directory = self.shared.paths.sandbox(&self.record.id);
        Agent::new(Guest::new(directory.join(descriptors::VSOCK)))
    }

    /// Returns how long programs ran in its guest before.
    pub async fn give_identity(
        &mut self,
        index: u32,
        env: BTreeMap<String, String>,
        account: Option<Account>,
    ) -> Result<Option<Duration>, EngineError> {
        let given = self.identify(index, env, account).await?;
        self.shared.tell_of(&self.record, given);
        Ok(self.running_since.map(|since| since.elapsed()))
    }

    /// The same, without an event.
    pub async fn identify(
        &mut self,
        index: u32,
        env: BTreeMap<String, String>,
        account: Option<Account>,
    ) -> Result<Given, EngineError> {
        let agent = self.agent();
        let identity = Identity { account, ..identity_of(&self.record, index.into(), env)? };
        let mut given = identity::give(&agent, &identity, PATIENCE).await?;
        self.laps.add(std::mem::take(&mut given.times));
        Ok(given)
    }

    /// Reserves its name without giving it an owner: it stays hidden.
    pub fn own(mut self, state: SandboxState) -> Result<(SandboxHandle, Name), EngineError> {
        let (Some(process), Some(name)) = (self.process.take(), self.name.take()) else {
            return Err(EngineError::Removed);
        };
        Ok((sandbox::own(&self.shared, self.record.clone(), process, state), name))
    }

    /// Gives it its owner, and its name to everybody: it is promised with its group.
    pub async fn promise(mut self, promise: &Arc<Promise>) -> Result<(SandboxView, Laps), EngineError> {
        self.laps.end(CreateStep::Ready);
        let (Some(process), Some(name)) = (self.process.take(), self.name.take()) else {
            return Err(EngineError::Removed);
        };
        let handle = sandbox::own(&self.shared, self.record.clone(), process, SandboxState::Starting);
        match handle.promise(Arc::clone(promise)).await {
            Ok(view) => {
                fault::place("create.promised");
                name.fill(handle);
                self.laps.end(CreateStep::Promise);
                Ok((view, self.laps.clone()))
            }
            Err(error) => {
                // It has ended meanwhile. Its remains are removed.
                let _ = handle.remove().await;
                Err(error)
            }
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        if self.name.is_none() || self.is_left {
            return;
        }
        if let Some((process, _)) = &self.process {
            process.kill();
        }
        self.shared.clear_files(&self.record);
        self.shared.leave_later(of_sandbox(&self.record));
    }
}

/// Who a sandbox is, with random numbers that no other sandbox has.
pub(crate) fn identity_of(
    record: &SandboxRecord,
    index: u64,
    env: BTreeMap<String, String>,
) -> Result<Identity, EngineError> {
    let mut random = [0u8; 80];
    getrandom::fill(&mut random).map_err(|error| EngineError::io("get random numbers")(error.into()))?;
    let (machine, seed) = random.split_at(16);
    let id = record.id.to_string();
    Ok(Identity {
        generation: record.generation,
        hostname: Some(id.clone()),
        machine_id: Some(hex::encode(machine)),
        id,
        index,
        env,
        access_token: None,
        network: None,
        account: None,
        seed: Some(base64::engine::general_purpose::STANDARD.encode(seed)),
        renew: true,
    })
}
