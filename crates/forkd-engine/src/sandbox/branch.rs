//! Branch: a snapshot of a sandbox that keeps running.

use std::fs;
use std::sync::Arc;

use forkd_image::digest::Digest;
use forkd_net::Policy;
use forkd_proto::control::{Branch, Command, Descriptor, Event, Reply};
use forkd_store::Tag;

use crate::blocking::in_place;
use crate::engine::{PATIENCE, unix_ms};
use crate::error::EngineError;
use crate::fault;
use crate::ids::LayerId;
use crate::limits::owner::Owner;
use crate::paths::PathError;
use crate::process::descriptors::{Named, open};
use crate::process::users::User;
use crate::process::{VmProcess, WithEvents, listen_in};
use crate::record::{self, DiskFiles, DiskRecord, ZygoteRecord};
use crate::registry::Reservation;
use crate::sandbox::Sandbox;
use crate::sandbox::laps::{BranchStep, Laps};
use crate::snapshot::{self, SnapshotHandle, SnapshotStatus, Zygote};

/// What is asked for.
#[derive(Debug)]
pub struct BranchOrder {
    /// The snapshot's name; without one, it gets one of the sandbox's.
    pub tag: Option<Tag>,
    /// Who asks: the branch's memory counts against its limit. Otherwise it is the sandbox's owner's, without a limit.
    pub owner: Option<Owner>,
    /// Whether the sandbox can be taken back to it. One that is only for copies is removed when they are there.
    pub kept: bool,
    /// If it is a snapshot of its own, and not a branch.
    pub derived: Option<Box<Derived>>,
    /// Since it was asked for.
    pub laps: Laps<BranchStep>,
}

/// What a snapshot is that was made with a sandbox of another one.
#[derive(Debug)]
pub struct Derived {
    pub name: Reservation<Tag, SnapshotHandle>,
    pub about: DerivedRecord,
}

/// What the record of such a snapshot says other than that of a branch.
#[derive(Debug)]
pub struct DerivedRecord {
    /// Who has asked for it.
    pub maker: Option<String>,
    /// What its children may reach: that of the snapshot it is based on.
    pub policy: Option<Policy>,
    /// If it is built: the digest of what it is made of.
    pub build_key: Option<Digest>,
    /// Whether that snapshot has memory of a sandbox with users.
    pub user_memory: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Branched {
    pub snapshot: SnapshotHandle,
    /// Where the time went.
    pub laps: Laps<BranchStep>,
}

/// The branches that a sandbox can go back to. Their names fit its record.
const MAX_BRANCHES: usize = 8192;

impl Sandbox {
    pub(crate) async fn branch(&mut self, order: BranchOrder) -> Result<Branched, EngineError> {
        forkd_proto::passes!();
        let mut laps = order.laps;
        laps.end(BranchStep::Turn);
        self.check_alive()?;
        self.forget_removed_branches()?;
        self.check_depth().await?;
        let shared = Arc::clone(&self.shared);
        let mut own = None;
        let (tag, name) = match (order.derived, order.tag) {
            (Some(derived), _) => {
                let Derived { name, about } = *derived;
                own = Some(about);
                (name.get().clone(), name)
            }
            (None, Some(tag)) => {
                let name = shared.snapshots.reserve(&tag);
                (tag.clone(), name.ok_or(EngineError::NameTaken(tag))?)
            }
            (None, None) => self.free_name()?,
        };
        let frozen_bytes = self.own_memory().await;
        let _claim = shared.admit_branch(order.owner.as_ref(), frozen_bytes, order.kept).await?;
        let owner = order.owner.map(|owner| owner.name).or_else(|| self.record.owner.clone());
        laps.end(BranchStep::Admit);
        let directory = shared.paths.zygote(&tag);
        in_place(|| fs::create_dir(&directory)).map_err(PathError::at("create", &directory))?;
        let branched = self.branch_into(&tag, owner, own, frozen_bytes, &mut laps).await;
        let (record, process) = match branched {
            Ok(branched) => branched,
            Err(error) => {
                // What cannot be removed now is removed by the next sweep.
                let _ = in_place(|| fs::remove_dir_all(&directory));
                return Err(error);
            }
        };
        if order.kept {
            self.record.branches.push(tag);
        }
        self.record.branches_made += 1;
        self.save()?;
        let zygote = Zygote { process: process.0, record };
        let handle = snapshot::own(&shared, Arc::new(zygote), process.1, SnapshotStatus::Live);
        name.fill(handle.clone());
        laps.end(BranchStep::Promise);
        Ok(Branched { snapshot: handle, laps })
    }

    /// Keeps the record within its bounds, whose branches would grow it for ever.
    fn forget_removed_branches(&mut self) -> Result<(), EngineError> {
        if self.record.branches.len() >= MAX_BRANCHES {
            let Sandbox { shared, record, .. } = self;
            record.branches.retain(|tag| shared.snapshots.has(tag));
        }
        match self.record.branches.len() {
            found if found < MAX_BRANCHES => Ok(()),
            _ => Err(EngineError::TooManyBranches(MAX_BRANCHES)),
        }
    }

    /// A name of the sandbox's own. Branches that are no longer its own, since it went back behind them, still have theirs.
    fn free_name(&self) -> Result<(Tag, Reservation<Tag, SnapshotHandle>), EngineError> {
        let mut number = self.record.branches_made.max(self.record.branches.len() as u64);
        loop {
            number += 1;
            let tag: Tag = format!("{}-{number}", self.record.id).parse()?;
            if let Some(name) = self.shared.snapshots.reserve(&tag) {
                return Ok((tag, name));
            }
        }
    }

    /// Makes the process. The sandbox's record is right whatever happens: before, it says what may be; after, what is.
    async fn branch_into(
        &mut self,
        tag: &Tag,
        owner: Option<String>,
        derived: Option<DerivedRecord>,
        frozen_bytes: u64,
        laps: &mut Laps<BranchStep>,
    ) -> Result<(ZygoteRecord, WithEvents), EngineError> {
        let directory = self.shared.paths.zygote(tag);
        let control = listen_in(&directory)?;
        let mut named = Named::default().with(Descriptor::Control, control);
        let old = self.record.disks.iter().map(|disk| disk.files.top.clone());
        let old = old.map(|top| Ok((open(&self.shared.paths.layer(&top))?, top)));
        let old = in_place(|| old.collect::<Result<Vec<_>, PathError>>())?;
        let mut next = Vec::new();
        let tops = self.shared.new_tops(&self.record.shape.devices.disks)?;
        for (disk, (top, file)) in self.record.disks.iter_mut().zip(tops) {
            let branched = BranchedDisk::new(&disk.files, top);
            disk.instead = branched.either();
            named = named.with(Descriptor::DiskTop, file);
            next.push(branched);
        }
        let lent = self.lend_cgroup()?;
        // Its name may be this one's by now.
        let parent = Some(self.record.snapshot.clone());
        let parent = parent.filter(|parent| self.shared.snapshots.get(parent).is_some());
        let mut record = ZygoteRecord {
            tag: tag.clone(),
            parent,
            branched_from: Some(self.record.id.clone()),
            created_unix_ms: unix_ms(),
            pause_us: None,
            shape: self.record.shape.clone(),
            disks: Vec::new(),
            user: self.process.user.as_ref().map(User::record),
            generation: self.record.generation,
            policy: self.record.network.as_ref().map(|network| network.policy.clone()),
            cgroup: lent.clone(),
            maker: owner.clone(),
            project: self.record.project.clone(),
            owner,
            frozen_bytes,
            layers_unsealed: false,
            build_key: None,
            user_memory: Some(true),
            promised: false,
        };
        let is_derived = derived.is_some();
        if let Some(DerivedRecord { maker, policy, build_key, user_memory }) = derived {
            // As one that was booted, but for what its source had in its memory.
            let (branched_from, owner, frozen_bytes, user_memory) = (None, None, 0, Some(user_memory));
            record = ZygoteRecord {
                branched_from,
                owner,
                maker,
                policy,
                build_key,
                user_memory,
                frozen_bytes,
                ..record
            };
        }
        in_place(|| {
            record::write(&directory, &record)?;
            self.save()
        })?;
        fault::place("branch.written");
        laps.end(BranchStep::Files);

        self.process.give_page_table().await;
        laps.end(BranchStep::PageTable);
        let (named, cgroup) = match &lent {
            Some(_) => (named, false),
            None => self.shared.with_zygote_cgroup(named, tag, &self.record.shape)?,
        };
        let disks = u8::try_from(next.len()).unwrap_or(u8::MAX);
        let command = Command::Branch(Branch { cgroup, disks });
        let descriptors = named.for_command(&command);
        let answer = self.process.control.call(command, &descriptors).await;
        drop(descriptors);
        laps.end(BranchStep::Fork);
        fault::place("branch.branched");
        let left: Vec<_>;
        let (pid, pidfd) = match answer {
            Ok((Reply::Branched { pid, pause_us, disk_layers }, mut pidfds))
                if disk_layers.len() >= next.len() =>
            {
                record.pause_us = (!is_derived).then_some(pause_us);
                for ((disk, next), is_frozen) in self.record.disks.iter_mut().zip(next).zip(&disk_layers) {
                    *disk = DiskRecord { files: next.files(*is_frozen), instead: Vec::new() };
                    record.disks.push(disk.files.frozen.clone());
                }
                let empty = old.into_iter().zip(disk_layers).filter(|(_, is_frozen)| !is_frozen);
                left = empty.map(|(old, _)| old).collect();
                left.iter().for_each(|(_, empty)| self.shared.remove_layer(empty));
                (pid, pidfds.pop().ok_or(EngineError::Answer(Reply::Done))?)
            }
            Ok((reply, _)) => return Err(EngineError::Answer(reply)),
            Err(error) => {
                // The VM may have died between the two.
                VmProcess::end_stray(&directory).await;
                next.iter().for_each(|next| self.shared.remove_layer(&next.top));
                self.record.disks.iter_mut().for_each(|disk| disk.instead.clear());
                self.take_cgroup_back(lent);
                self.save()?;
                return Err(error.into());
            }
        };
        self.save()?;
        fault::place("branch.settled");
        let taken = VmProcess::take(&directory, self.process.pid, pid, pidfd);
        if taken.is_err() {
            // There may be one all the same.
            VmProcess::end_stray(&directory).await;
            self.take_cgroup_back(lent.clone());
        }
        let (mut process, mut events) = taken?;
        process.user = self.process.user.clone();
        let up = async {
            self.leave_cgroup(lent.as_deref()).await?;
            match tokio::time::timeout(PATIENCE, events.recv()).await {
                Ok(Some(Event::Zygote)) => {}
                Ok(other) => return Err(EngineError::Ended(format!("{other:?}"))),
                Err(_) => return Err(EngineError::Timeout),
            }
            laps.end(BranchStep::Running);
            // Others are forked from it as soon as it is promised, and must not be able to change each other's disks. The sandbox runs
            // meanwhile.
            for (file, empty) in &left {
                self.shared.given_up(file, empty).await?;
            }
            let Sandbox { shared, process: source, sealed, .. } = &mut *self;
            shared.seal(&[&*source, &process], &record.disks, sealed).await
        };
        if let Err(error) = up.await {
            // It would never be ended otherwise: its directory is removed.
            process.end().await;
            self.take_cgroup_back(lent);
            return Err(error);
        }
        laps.end(BranchStep::Seal);
        record.promised = true;
        record::write(&directory, &record)?;
        fault::place("branch.promised");
        Ok((record, (process, events)))
    }
}

/// A disk after a branch: the new top layer above the old one, or in its place if nothing was written to that.
#[derive(Clone)]
struct BranchedDisk {
    frozen: Vec<LayerId>,
    old_top: LayerId,
    top: LayerId,
}

impl BranchedDisk {
    fn new(before: &DiskFiles, top: LayerId) -> BranchedDisk {
        BranchedDisk { frozen: before.frozen.clone(), old_top: before.top.clone(), top }
    }

    /// The files of it, when it is known whether the old top layer was frozen.
    fn files(self, is_frozen: bool) -> DiskFiles {
        let BranchedDisk { mut frozen, old_top, top } = self;
        frozen.extend(is_frozen.then_some(old_top));
        DiskFiles { frozen, top }
    }

    /// Either of them, as long as that is not known.
    fn either(&self) -> Vec<DiskFiles> {
        [false, true].map(|is_frozen| self.clone().files(is_frozen)).into()
    }
}
