//! Make: a snapshot from a kernel and an image, by booting them.
//!
//! ```text
//!   boot ─▶ agent answers ─▶ image's start is ready ─▶ commands ─▶ warm-up ─▶ gate closed, programs frozen ─▶ freeze ─▶ a live snapshot
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forkd_image::digest::Digest;
use forkd_net::Network;
use forkd_proto::control::{Command, Event, Reply};
use forkd_store::Tag;
use tokio::sync::mpsc;

use crate::agent::Agent;
use crate::blocking::in_place;
use crate::boot::{BootDisk, BootFrom, boot_in};
use crate::bring_up::{ImageConfig, bring_up_with_output};
use crate::engine::{Engine, Shared, unix_ms};
use crate::error::EngineError;
use crate::identity;
use crate::ids::LayerId;
use crate::limits::admission::AdmissionRequest;
use crate::limits::owner::{Holding, Owner};
use crate::limits::quota::of_tag;
use crate::network::NetworkOrder;
use crate::paths::PathError;
use crate::process::users::User;
use crate::process::{ProcessError, VmProcess};
use crate::record::{self, BOOTED, Shape, ZygoteRecord};
use crate::snapshot::{self, SnapshotHandle, SnapshotStatus, Zygote};

/// What to boot. The paths are the library's, never a caller's.
#[derive(Debug, Clone)]
pub struct NewSnapshot {
    pub tag: Tag,
    /// An ELF kernel.
    pub kernel: PathBuf,
    pub initramfs: Option<PathBuf>,
    pub command_line: String,
    pub shape: Shape,
    /// What the image says about its processes. Only for a guest with a vsock, which has an agent.
    pub config: ImageConfig,
    /// How long the guest may take until it is ready.
    pub limit: Duration,
    /// If it is built: the digest of what it is made of.
    pub build_key: Option<Digest>,
}

/// What is told of the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// What begins now.
    Begins(String),
    /// What commands and the warm-up print, as it comes: pieces, not lines.
    Printed(String),
}

pub type Steps = mpsc::Sender<Step>;

/// Pieces of what is printed that wait to be told.
pub(super) const QUEUE: usize = 4;

impl Engine {
    /// Boots, and freezes what came up. The snapshot can be forked from when this returns, and is on disk later.
    pub async fn make(&self, new: NewSnapshot, steps: &Steps) -> Result<SnapshotHandle, EngineError> {
        self.make_for(new, None, steps).await
    }

    /// The same for an owner. While it boots, its guest counts as a sandbox against the owner's limits.
    pub async fn make_for(
        &self,
        new: NewSnapshot,
        owner: Option<&Owner>,
        steps: &Steps,
    ) -> Result<SnapshotHandle, EngineError> {
        let shared = &self.shared;
        let name =
            shared.snapshots.reserve(&new.tag).ok_or_else(|| EngineError::NameTaken(new.tag.clone()))?;
        let _claim = match owner {
            Some(owner) => {
                Some(shared.claim(owner, Holding::snapshot(None).plus(Holding::of(&new.shape))).await?)
            }
            None => None,
        };
        shared.networks.admit(&NetworkOrder::default(), &new.shape.devices)?;
        shared.admit(AdmissionRequest { sandboxes: 0, memory_bytes: new.shape.memory_bytes }, None).await?;
        let directory = shared.paths.zygote(&new.tag);
        in_place(|| fs::create_dir(&directory)).map_err(PathError::at("create", &directory))?;
        let mut making = Making {
            shared: Arc::clone(shared),
            network: None,
            tag: new.tag.clone(),
            directory,
            process: None,
            tops: Vec::new(),
            done: false,
        };
        let (zygote, events) = making.boot_and_freeze(&new, owner, steps).await?;
        making.done = true;
        let handle = snapshot::own(shared, Arc::new(zygote), events, SnapshotStatus::Live);
        name.fill(handle.clone());
        Ok(handle)
    }
}

/// What is being made. Dropped before it is done, it is gone.
struct Making {
    shared: Arc<Shared>,
    tag: Tag,
    directory: PathBuf,
    process: Option<VmProcess>,
    tops: Vec<LayerId>,
    /// Until it is frozen.
    network: Option<Network>,
    done: bool,
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(network) = self.network.take() {
            self.shared.networks.return_temporary(network);
        }
        if self.done {
            return;
        }
        if let Some(process) = &self.process {
            process.kill();
        }
        // What cannot be removed now is removed by the next sweep.
        in_place(|| {
            let _ = fs::remove_dir_all(&self.directory);
            self.tops.iter().for_each(|top| self.shared.remove_layer(top));
        });
        self.shared.leave_later(of_tag(&self.tag));
    }
}

impl Making {
    async fn boot_and_freeze(
        &mut self,
        new: &NewSnapshot,
        owner: Option<&Owner>,
        steps: &Steps,
    ) -> Result<(Zygote, mpsc::Receiver<Event>), EngineError> {
        let user = self.shared.users.new_user(false).map_err(ProcessError::from)?;
        let tops = self.shared.new_tops(&new.shape.devices.disks)?;
        self.tops = tops.iter().map(|(top, _)| top.clone()).collect();
        let mut record = ZygoteRecord {
            tag: new.tag.clone(),
            parent: None,
            branched_from: None,
            created_unix_ms: unix_ms(),
            pause_us: None,
            shape: new.shape.clone(),
            // Until it is frozen: what a disk is made of must be in a record, or it is swept.
            disks: self.tops.iter().map(|top| vec![top.clone()]).collect(),
            user: user.as_ref().map(User::record),
            generation: BOOTED,
            policy: None,
            cgroup: None,
            owner: None,
            maker: owner.map(|owner| owner.name.clone()),
            project: owner.map(|owner| owner.project.clone()).unwrap_or_default(),
            frozen_bytes: 0,
            layers_unsealed: false,
            build_key: new.build_key,
            user_memory: None,
            promised: false,
        };
        record::write(&self.directory, &record)?;
        let mut started =
            VmProcess::start_detached(&self.shared.program, &self.directory, user, new.shape.largest_file())?;
        let process = started.0.clone();
        self.process = Some(process.clone());
        self.shared.enter_zygote_cgroup(&new.tag, &new.shape, process.pid)?;
        step(steps, "boot").await;
        let from = self.boot_from(new, tops.into_iter().map(|(_, file)| file)).await?;
        let agent = self.shared.unless_mute(&process, boot_in(&mut started, &self.directory, from)).await??;
        if new.shape.devices.vsock.is_some() {
            step(steps, "start").await;
            bring_up_telling(&agent, new, steps).await?;
            // Closed here, it is closed in every child: none serves anybody as its parent, and none of its programs runs as
            // the parent's.
            if let Some(problem) = identity::close(&agent, new.limit).await? {
                warn(steps, &problem).await;
            }
        }
        step(steps, "freeze").await;
        let frozen = self.shared.call(&process, Command::Freeze, &[]).await?.0;
        let disk_layers = match frozen {
            Reply::Frozen { disk_layers } if disk_layers.len() >= record.disks.len() => disk_layers,
            other => return Err(EngineError::Answer(other)),
        };
        // An empty layer is not part of its disk.
        for (layers, _) in record.disks.iter_mut().zip(disk_layers).filter(|(_, is_frozen)| !is_frozen) {
            layers.clear();
        }
        self.shared.seal(&[&process], &record.disks, &mut BTreeSet::new()).await?;
        record.promised = true;
        record::write(&self.directory, &record)?;
        self.tops.retain(|top| !record.disks.iter().flatten().any(|layer| layer == top));
        self.tops.drain(..).for_each(|top| self.shared.remove_layer(&top));
        Ok((Zygote { process, record }, started.1))
    }

    async fn boot_from<'a>(
        &mut self,
        new: &'a NewSnapshot,
        tops: impl Iterator<Item = File>,
    ) -> Result<BootFrom<'a>, EngineError> {
        let boot_disk = |(image, top): (Option<&_>, File)| {
            let base = image.map(|image| self.shared.base(image)).transpose()?;
            Ok(BootDisk { base, layers: Vec::new(), top })
        };
        let disks = new.shape.images().zip(tops).map(boot_disk).collect::<Result<_, EngineError>>()?;
        let mut tap = None;
        if new.shape.devices.net.is_some() {
            let (network, its_tap) = self.shared.networks.lease_temporary().await?;
            self.network = Some(network);
            tap = Some(its_tap);
        }
        Ok(BootFrom {
            shape: &new.shape,
            command_line: &new.command_line,
            kernel: &new.kernel,
            initramfs: new.initramfs.as_deref(),
            disks,
            tap,
            limit: new.limit,
        })
    }
}

async fn bring_up_telling(agent: &Agent, new: &NewSnapshot, steps: &Steps) -> Result<(), EngineError> {
    let (printed, mut pieces) = mpsc::channel(QUEUE);
    let up = async move {
        bring_up_with_output(agent, &new.config, new.tag.as_str(), new.limit, Some(&printed)).await
    };
    let telling = async {
        while let Some(piece) = pieces.recv().await {
            let _ = steps.send(Step::Printed(piece)).await;
        }
    };
    let (up, ()) = tokio::join!(up, telling);
    Ok(up?)
}

/// Programs that are not frozen run in a child before it has its identity.
pub(super) async fn warn(steps: &Steps, problem: &str) {
    let warning =
        format!("warning: programs of this snapshot may run in a child before it is a new one: {problem}\n");
    let _ = steps.send(Step::Printed(warning)).await;
}

/// Reports a step. The requester may have gone.
pub(super) async fn step(steps: &Steps, name: &'static str) {
    let _ = steps.send(Step::Begins(name.to_owned())).await;
}
