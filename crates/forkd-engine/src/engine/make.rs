//! Make: a snapshot from a kernel and an image, by booting them.
//!
//! ```text
//!   boot ─▶ agent answers ─▶ image's start is ready ─▶ warm-up ─▶ gate closed, programs frozen ─▶ freeze ─▶ a live snapshot
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forkd_net::Network;
use forkd_proto::control::{Boot, Command, Descriptor, Event, Reply};
use forkd_store::Tag;
use tokio::sync::mpsc;

use super::admission::Wanted;
use super::network::NetworkOrder;
use super::owner::{Holding, Owner};
use super::quota::of_tag;
use super::snapshot::{self, SnapshotHandle, SnapshotStatus, Zygote};
use super::{Engine, EngineError, Shared, unix_ms};
use crate::agent::Agent;
use crate::blocking::in_place;
use crate::bring_up::{ImageConfig, bring_up_aloud};
use crate::descriptors::{Named, VSOCK};
use crate::guest::Guest;
use crate::identity;
use crate::ids::LayerId;
use crate::lasting::{Lasting, LastingError};
use crate::places::PlaceError;
use crate::record::{self, Shape, ZygoteRecord};
use crate::users::User;

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
}

/// What is told of the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// What begins now.
    Begins(&'static str),
    /// What the warm-up prints, as it comes: pieces, not lines.
    Printed(String),
}

pub type Steps = mpsc::Sender<Step>;

/// Pieces of what is printed that wait to be told.
const QUEUE: usize = 4;

impl Engine {
    /// Boots, and freezes what came up. The snapshot can be forked from when this returns, and is on disk later.
    pub async fn make(&self, new: NewSnapshot, steps: &Steps) -> Result<SnapshotHandle, EngineError> {
        self.make_for(new, None, steps).await
    }

    /// The same for somebody. While it boots, its guest counts as a sandbox against what that one may have.
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
                Some(shared.claim(owner, Holding { snapshots: 1, ..Holding::of(&new.shape) }).await?)
            }
            None => None,
        };
        shared.networks.admit(&NetworkOrder::default(), &new.shape.devices)?;
        shared.admit(Wanted { sandboxes: 0, memory_bytes: new.shape.memory_bytes }, None).await?;
        let directory = shared.places.zygote(&new.tag);
        in_place(|| fs::create_dir(&directory)).map_err(PlaceError::at("create", &directory))?;
        let mut making = Making {
            shared: Arc::clone(shared),
            network: None,
            tag: new.tag.clone(),
            directory,
            process: None,
            top: None,
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
    process: Option<Lasting>,
    top: Option<LayerId>,
    /// Until it is frozen.
    network: Option<Network>,
    done: bool,
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(network) = self.network.take() {
            self.shared.networks.give_back_passing(network);
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
            if let Some(top) = &self.top {
                self.shared.remove_layer(top);
            }
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
        let user = self.shared.users.new_user(false).map_err(LastingError::from)?;
        let top = match new.shape.devices.disk {
            Some(_) => Some(self.new_top(&new.shape)?),
            None => None,
        };
        let mut record = ZygoteRecord {
            tag: new.tag.clone(),
            parent: None,
            branched_from: None,
            created_unix_ms: unix_ms(),
            pause_us: None,
            shape: new.shape.clone(),
            // Until it is frozen: what a disk is made of must be in a record, or it is swept.
            layers: self.top.iter().cloned().collect(),
            user: user.as_ref().map(User::record),
            generation: 1,
            policy: None,
            cgroup: None,
            owner: None,
            maker: owner.map(|owner| owner.name.clone()),
            project: owner.map(|owner| owner.project.clone()).unwrap_or_default(),
            frozen_bytes: 0,
            promised: false,
        };
        record::write(&self.directory, &record)?;
        let (process, events) =
            Lasting::start(&self.shared.program, &self.directory, user, new.shape.largest_file())?;
        self.process = Some(process.clone());
        self.shared.enter_zygote_cgroup(&new.tag, &new.shape, process.pid)?;
        step(steps, "boot").await;
        self.boot(new, &process, top).await?;
        if new.shape.devices.vsock.is_some() {
            let agent = Agent::new(Guest::new(self.directory.join(VSOCK)));
            agent.wait_for_answer(new.limit).await?;
            step(steps, "start").await;
            bring_up_telling(&agent, new, steps).await?;
            // Closed here, it is closed in every child: none serves anybody as its parent, and none of its programs runs as
            // the parent's.
            if let Some(problem) = identity::close(&agent, new.limit).await? {
                let warning = format!(
                    "warning: programs of this snapshot may run in a child before it is a new one: {problem}\n"
                );
                let _ = steps.send(Step::Printed(warning)).await;
            }
        }
        step(steps, "freeze").await;
        let frozen = self.shared.call(&process, Command::Freeze, &[]).await?.0;
        let Reply::Frozen { disk_layer } = frozen else { return Err(EngineError::Answer(frozen)) };
        match disk_layer {
            true => self.shared.seal(&[&process], &record.layers, &mut BTreeSet::new()).await?,
            false => record.layers.clear(),
        }
        record.promised = true;
        record::write(&self.directory, &record)?;
        match disk_layer {
            true => self.top = None,
            false => self.forget_top(),
        }
        Ok((Zygote { process, record }, events))
    }

    fn new_top(&mut self, shape: &Shape) -> Result<File, EngineError> {
        let (top, file) = self.shared.new_layer(shape)?;
        self.top = Some(top);
        Ok(file)
    }

    /// An empty layer is not part of the disk.
    fn forget_top(&mut self) {
        if let Some(top) = self.top.take() {
            self.shared.remove_layer(&top);
        }
    }

    async fn boot(
        &mut self,
        new: &NewSnapshot,
        process: &Lasting,
        top: Option<File>,
    ) -> Result<(), EngineError> {
        let open = |path: &Path| File::open(path).map_err(PlaceError::at("open", path));
        let devices = new.shape.devices.clone();
        let mut named = in_place(|| {
            let named = Named::of_vm(&devices, &self.directory)?;
            let mut named = named.with(Descriptor::Kernel, open(&new.kernel)?);
            if let Some(initramfs) = &new.initramfs {
                named = named.with(Descriptor::Initramfs, open(initramfs)?);
            }
            if let Some(image) = &new.shape.image {
                named = named.with(Descriptor::DiskBase, self.shared.base(image)?);
            }
            Ok::<_, EngineError>(named)
        })?;
        if let Some(top) = top {
            named = named.with(Descriptor::DiskTop, top);
        }
        if devices.net.is_some() {
            let (network, tap) = self.shared.networks.take_passing().await?;
            self.network = Some(network);
            named = named.with(Descriptor::Tap, tap);
        }
        let command = Command::Boot(Boot {
            vcpus: new.shape.vcpus,
            memory_bytes: new.shape.memory_bytes,
            command_line: new.command_line.clone(),
            initramfs: new.initramfs.is_some(),
            cpu: new.shape.cpu,
            devices,
        });
        let descriptors = named.for_command(&command);
        self.shared.call(process, command, &descriptors).await?;
        Ok(())
    }
}

async fn bring_up_telling(agent: &Agent, new: &NewSnapshot, steps: &Steps) -> Result<(), EngineError> {
    let (printed, mut pieces) = mpsc::channel(QUEUE);
    let up =
        async move { bring_up_aloud(agent, &new.config, new.tag.as_str(), new.limit, Some(&printed)).await };
    let telling = async {
        while let Some(piece) = pieces.recv().await {
            let _ = steps.send(Step::Printed(piece)).await;
        }
    };
    let (up, ()) = tokio::join!(up, telling);
    Ok(up?)
}

/// Tells of a step. Whoever asked may not listen.
async fn step(steps: &Steps, name: &'static str) {
    let _ = steps.send(Step::Begins(name)).await;
}
