//! Carries out the steps of a build in guests.
//!
//! ```text
//!   WORKDIR  COPY  RUN │ RUN │ COPY  COPY  RUN │ COPY (the stage ends)
//!   ──── one guest ─── │     │                 │
//!                      └─────┴── the guest ends in order; what it wrote is a layer, kept under the key of the last step
//! ```
//!
//! A command is the last thing that a guest does: nothing that it has started lives on, and its result is kept before the
//! next one can fail. Placing files takes less than booting, so files wait in the guest for the command that follows them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use forkd_engine::agent::{Agent, AgentError};
use forkd_engine::boot::DiskPlan;
use forkd_engine::exec::{self, ExecError, Program};
use forkd_engine::small::{self, TarEntry};
use forkd_engine::transfer::{self, Pack, Piece, Place};
use forkd_engine::{host_environment, trust};
use forkd_envd::Exit;
use forkd_envd::init::{INIT, InitRequest};
use forkd_image::Progress;
use forkd_image::archive::{ArchiveError, Limits, decompressed};
use forkd_image::builds::{BuildCache, BuildCacheError, Ground, InUse, StepDraft};
use forkd_image::debian::{Debian, DebianError, debian};
use forkd_image::digest::{Digest, Hasher};
use forkd_image::dockerfile::{Base, Context, ContextError, CopyFromStep, CopyStep, Item, RunStep, Runner};
use forkd_image::host_environment::HostEnvironment;
use forkd_image::images::{Config, Draft, Finish, Image, ImageError, ImageStore, Source, default_user};
use forkd_image::registry::{Pull, PullError, pull};
use forkd_proto::agent::VERSION;
use forkd_proto::agent::account::{Account, AccountRequest};
use serde_json::Value;
use tokio::sync::mpsc;

use crate::archive::{self, Pieces};
use crate::guests::{FindGuests, Guests, GuestsError, RunningGuest};
use crate::output::Lines;
use crate::wait::{Interrupted, Wait};

/// Maximum size of a file of users.
const MAX_PASSWD: usize = 1 << 20;
const CALL: std::time::Duration = std::time::Duration::from_secs(60);
/// Pieces of an archive on their way.
const QUEUE: usize = 4;
const TOP: &str = "top";
const NO_NETWORK: &str = "\n(The command had no network: it was disabled, or forkd does not run as root.)";

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("the command ended with {status}; its last output:\n{output}{hint}")]
    Failed { status: String, output: String, hint: &'static str },
    #[error("cannot run the command: {0}")]
    Refused(String),
    #[error("the connection to the command broke{console}")]
    CutOff { console: String, source: ExecError },
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
    #[error("cannot copy files into the guest: {0}")]
    Place(String),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Guests(#[from] GuestsError),
    #[error(transparent)]
    Cache(#[from] BuildCacheError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("no image of this name in the library")]
    Pull(#[from] PullError),
    #[error(transparent)]
    Debian(#[from] DebianError),
    #[error(transparent)]
    Context(#[from] ContextError),
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    #[error("cannot {0}")]
    Io(&'static str, #[source] io::Error),
}

/// A disk: a base image and what steps have written. Clones are the same disk.
#[derive(Clone)]
pub struct Disk {
    base: PathBuf,
    state: Rc<RefCell<BuildDiskState>>,
}

struct BuildDiskState {
    ground: Ground,
    default_user: String,
    /// What the last guest has written, until it is kept; then it is part of the ground.
    fresh: Option<StepDraft>,
    /// A guest that has placed files, and waits for what comes next.
    live: Option<Live>,
}

/// A guest at work, and where the disk that it writes is.
struct Live {
    guest: Box<dyn RunningGuest>,
    draft: StepDraft,
}

impl Disk {
    fn new(base: PathBuf, state: BuildDiskState) -> Disk {
        Disk { base, state: Rc::new(RefCell::new(state)) }
    }

    pub fn base(&self) -> &Path {
        &self.base
    }

    /// Whether the base leaves a part of such a disk to be grown into.
    fn is_smaller_than(&self, bytes: u64) -> Result<bool, RunError> {
        let base = self.base.metadata().map_err(|error| RunError::Io("read the base image", error))?;
        Ok(base.len() < bytes)
    }

    /// The layers, the oldest first.
    pub fn layers(&self, cache: &BuildCache) -> Vec<PathBuf> {
        let state = self.state.borrow();
        let fresh = state.fresh.as_ref().map(|draft| draft.path().join(TOP));
        state.ground.steps.iter().map(|name| cache.layer(name)).chain(fresh).collect()
    }

    /// The user of processes if the image's configuration names no user.
    pub fn default_user(&self) -> String {
        self.state.borrow().default_user.clone()
    }
}

/// The runner of builds.
pub struct GuestRunner<'a> {
    images: &'a ImageStore,
    cache: &'a BuildCache,
    _in_use: InUse,
    /// Whether steps of earlier builds are used.
    uses_cache: bool,
    host: Option<HostEnvironment>,
    /// A user that the guests have.
    pub account: Option<Account>,
    /// Disks are as large as this, if their images are smaller.
    disk_bytes: u64,
    find: &'a FindGuests<'a>,
    /// Found when the first step needs one.
    guests: Option<Box<dyn Guests>>,
    /// What this build has made or found.
    made: BTreeMap<Digest, Disk>,
    wait: Wait<'a>,
}

impl<'a> GuestRunner<'a> {
    pub fn new(
        images: &'a ImageStore,
        cache: &'a BuildCache,
        find: &'a FindGuests<'a>,
        uses_cache: bool,
        host: Option<HostEnvironment>,
        disk_bytes: u64,
        progress: &'a dyn Progress,
    ) -> Result<GuestRunner<'a>, RunError> {
        Ok(GuestRunner {
            images,
            cache,
            _in_use: cache.hold()?,
            uses_cache,
            host,
            account: None,
            disk_bytes,
            find,
            guests: None,
            made: BTreeMap::new(),
            wait: Wait::new(progress).map_err(|error| RunError::Io("start", error))?,
        })
    }

    /// The guests, if any step needed one.
    pub fn guests(&self) -> Option<&dyn Guests> {
        self.guests.as_deref()
    }

    fn start(&mut self, disk: &Disk, top: &Path) -> Result<Box<dyn RunningGuest>, RunError> {
        let guests = match self.guests.take() {
            Some(guests) => guests,
            None => (self.find)(self.wait.progress())?,
        };
        let guests = self.guests.insert(guests);
        let plan = DiskPlan {
            base: disk.base.clone(),
            layers: disk.layers(self.cache),
            top: Some(top.into()),
            bytes: self.disk_bytes,
        };
        Ok(guests.start(&self.wait, &plan)?)
    }

    /// The guest that waits with a disk, or a new one.
    fn enter(&mut self, disk: &Disk) -> Result<Live, RunError> {
        if let Some(live) = disk.state.borrow_mut().live.take() {
            return Ok(live);
        }
        let draft = self.cache.draft()?;
        let guest = self.start(disk, &draft.path().join(TOP))?;
        if let Some(account) = self.account.clone() {
            let request = AccountRequest { version: VERSION, account };
            self.wait.until(guest.agent().post::<Value>("/forkd/account", &request, CALL))??;
        }
        let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
        let init =
            InitRequest { default_user: Some("root".into()), timestamp: Some(now), ..InitRequest::default() };
        self.wait.until(guest.agent().post::<Value>(INIT, &init, CALL))??;
        if disk.is_smaller_than(self.disk_bytes)? {
            self.wait.until(guest.agent().post::<Value>("/forkd/grow", &Value::Null, CALL))??;
        }
        Ok(Live { guest, draft })
    }

    /// Places files in a guest, which then waits with the disk.
    fn place(
        &mut self,
        disk: &Disk,
        act: impl FnOnce(&mut Self, &Agent) -> Result<(), RunError>,
    ) -> Result<Disk, RunError> {
        let live = self.enter(disk)?;
        act(self, live.guest.agent())?;
        let ground = disk.state.borrow().ground.clone();
        let state =
            BuildDiskState { ground, default_user: disk.default_user(), fresh: None, live: Some(live) };
        Ok(Disk::new(disk.base.clone(), state))
    }

    /// Ends a guest: what it wrote is the next disk's.
    fn end(&self, disk: &Disk, live: Live) -> Result<Disk, RunError> {
        let Live { guest, draft } = live;
        let passwd = self.wait.until(transfer::read_file(guest.agent(), "/etc/passwd", MAX_PASSWD))?;
        // One that is too large or odd has no users.
        let passwd = passwd.ok().flatten().unwrap_or_default();
        let default_user = default_user(&Config::default(), &String::from_utf8_lossy(&passwd));
        guest.finish(&self.wait)?;
        let ground = disk.state.borrow().ground.clone();
        let state = BuildDiskState { ground, default_user, fresh: Some(draft), live: None };
        Ok(Disk::new(disk.base.clone(), state))
    }

    fn place_small(&self, agent: &Agent, entries: &[TarEntry<'_>]) -> Result<(), RunError> {
        self.wait.until(small::place(agent, entries))?.map_err(placing)
    }

    /// Places an archive that a thread writes meanwhile.
    fn place_written(
        &self,
        agent: &Agent,
        place: &Place<'_>,
        write: impl FnOnce(&mut Pieces) -> Result<(), RunError> + Send,
    ) -> Result<(), RunError> {
        let (sender, receiver) = mpsc::channel::<Piece>(QUEUE);
        let (placed, written) = std::thread::scope(|scope| {
            let writer = scope.spawn(move || {
                let mut pieces = Pieces::new(sender);
                let written = write(&mut pieces);
                pieces.finish(written)
            });
            // The receiver goes with the future, and then the writer ends too.
            let placed = self.wait.until(transfer::place(agent, place, receiver));
            let written = writer.join().unwrap_or_else(|_| {
                Err(RunError::Io("write an archive", io::Error::other("the writer panicked")))
            });
            (placed, written)
        });
        match (placed?, written) {
            (Ok(()), written) => written,
            // The guest's word on why it took no more.
            (Err(error @ AgentError::Status { .. }), _) => Err(placing(error)),
            (Err(_), Err(error)) => Err(error),
            (Err(error), Ok(())) => Err(placing(error)),
        }
    }

    fn run_in(&self, guest: &dyn RunningGuest, step: &RunStep) -> Result<(), RunError> {
        let agent = guest.agent();
        let mut env = step.env.clone();
        let mut added = None;
        if let Some(host) = &self.host {
            self.wait.until(host_environment::place(agent, host))?.map_err(placing)?;
            added = self.wait.until(trust::add(agent, &host.certificates))?.map_err(placing)?;
            env = host_environment::environment(host, &env);
        }
        // A base image may name a directory that it does not have.
        self.place_small(agent, &[TarEntry::Directory(&step.workdir)])?;
        if let Some(user) = &step.user {
            let init = InitRequest { default_user: Some(user.clone()), ..InitRequest::default() };
            self.wait.until(agent.post::<Value>(INIT, &init, CALL))??;
        }
        let program = Program {
            arguments: &step.arguments,
            env: &env,
            workdir: &step.workdir,
            user: None,
            stdin: None,
            limit: None,
        };
        let mut lines = Lines::default();
        let show = |line: &str| self.wait.progress().output(line);
        // A command may take for ever. If the build is cancelled, the guest and its files are removed with the error.
        let ended = self.wait.until(exec::exec(agent, &program, |bytes| lines.push(bytes, show)));
        let output = lines.finish(show);
        match ended? {
            Ok(Exit::Code(0)) => match &added {
                Some(added) => self.wait.until(trust::take_out(agent, added))?.map_err(placing),
                None => Ok(()),
            },
            Ok(exit) => {
                let hint = if guest.has_network() { "" } else { NO_NETWORK };
                Err(RunError::Failed { status: exit.describe(), output, hint })
            }
            Err(ExecError::Refused(why)) => Err(RunError::Refused(why)),
            Err(source) => {
                let console = guest.console().filter(|text| !text.trim().is_empty());
                let console = console.map(|text| format!("; the guest's console says:\n{text}\n"));
                Err(RunError::CutOff { console: console.unwrap_or_default(), source })
            }
        }
    }

    fn image(&self, base: &Base) -> Result<Image, RunError> {
        match base {
            Base::Scratch => {
                let finish = Finish {
                    config: Config::default(),
                    source: Source::Archive { file: "scratch".into() },
                    min_mib: None,
                    name: None,
                };
                Ok(Draft::new(self.images, Limits::default())?.finish(finish, self.wait.progress())?)
            }
            Base::Debian(suite) => match self.images.find(&format!("debian:{suite}")) {
                Err(ImageError::Unknown(_)) => {
                    let wanted = Debian {
                        suite: suite.clone(),
                        include: Vec::new(),
                        mirror: None,
                        name: None,
                        min_mib: None,
                    };
                    Ok(debian(self.images, &wanted, self.wait.progress())?)
                }
                found => Ok(found?),
            },
            Base::Image(text) => match self.images.find(text) {
                Err(ImageError::Unknown(_)) => {
                    let reference = text.clone();
                    let limits = Limits::default();
                    let wanted = Pull { reference, name: None, min_mib: None, limits, credentials: None };
                    Ok(pull(self.images, &wanted, self.wait.progress())?)
                }
                found => Ok(found?),
            },
        }
    }
}

fn placing(error: AgentError) -> RunError {
    match error {
        AgentError::Status { message, .. } => RunError::Place(message),
        error => error.into(),
    }
}

impl Runner for GuestRunner<'_> {
    type Disk = Disk;
    type Error = RunError;

    fn base(&mut self, base: &Base) -> Result<(Disk, Config, Digest), RunError> {
        let image = self.image(base)?;
        let state = BuildDiskState {
            ground: Ground::of(&image),
            default_user: image.metadata.default_user.clone(),
            fresh: None,
            live: None,
        };
        let disk = Disk::new(image.base(), state);
        let mut id = image.id();
        // Steps on a disk of another size have written other blocks, so they have other keys.
        if disk.is_smaller_than(self.disk_bytes)? {
            let hasher = Hasher::new("forkd larger disk").part(id.hex().as_bytes());
            id = hasher.part(&self.disk_bytes.to_le_bytes()).finish();
        }
        // So do steps that find a user which the image does not have.
        if let Some(account) = &self.account {
            let hasher = Hasher::new("forkd account").part(id.hex().as_bytes());
            id = hasher.part(account.name.as_bytes()).part(account.home.as_bytes()).finish();
        }
        Ok((disk, image.metadata.config, id))
    }

    fn cached(&mut self, key: Digest) -> Result<Option<Disk>, RunError> {
        if let Some(disk) = self.made.get(&key) {
            return Ok(Some(disk.clone()));
        }
        if !self.uses_cache {
            return Ok(None);
        }
        let Some(step) = self.cache.find(key, self.images)? else { return Ok(None) };
        let image = self.images.get(step.ground.image)?;
        let image = image.ok_or_else(|| ImageError::Unknown(step.ground.image.to_string()))?;
        let mut ground = step.ground;
        ground.steps.push(step.name);
        let state = BuildDiskState { ground, default_user: step.default_user, fresh: None, live: None };
        let disk = Disk::new(image.base(), state);
        self.made.insert(key, disk.clone());
        Ok(Some(disk))
    }

    fn keep(&mut self, key: Digest, disk: &Disk) -> Result<(), RunError> {
        let mut state = disk.state.borrow_mut();
        if state.live.is_some() {
            // The next step runs in this guest, and this disk will never be seen.
            return Ok(());
        }
        if let Some(draft) = state.fresh.take() {
            let (ground, user) = (state.ground.clone(), state.default_user.clone());
            let step = self.cache.keep(&draft, &draft.path().join(TOP), key, ground, user)?;
            state.ground.steps.push(step.name);
        }
        drop(state);
        self.made.insert(key, disk.clone());
        Ok(())
    }

    fn settle(&mut self, key: Digest, disk: Disk) -> Result<Disk, RunError> {
        let live = disk.state.borrow_mut().live.take();
        let Some(live) = live else { return Ok(disk) };
        let disk = self.end(&disk, live)?;
        self.keep(key, &disk)?;
        Ok(disk)
    }

    fn run(&mut self, disk: Disk, step: &RunStep) -> Result<Disk, RunError> {
        let live = self.enter(&disk)?;
        self.run_in(live.guest.as_ref(), step)?;
        self.end(&disk, live)
    }

    fn copy(&mut self, disk: Disk, context: &Context, step: &CopyStep) -> Result<Disk, RunError> {
        let (archives, plain): (Vec<Item>, Vec<Item>) =
            step.items.iter().cloned().partition(|item| item.unpacks);
        let placed = |into| Place { into, owner: step.owner.as_deref(), mode: step.mode };
        self.place(&disk, |runner, agent| {
            if !plain.is_empty() {
                runner
                    .place_written(agent, &placed("/"), |to| Ok(context.write_tar(&plain, (0, 0), to)?))?;
            }
            for item in &archives {
                let into = if item.destination.is_empty() { "/" } else { &item.destination };
                runner.place_written(agent, &placed(into), |to| {
                    let mut from = decompressed(context.open_file(&item.source)?)?;
                    archive::copy(&mut from, to).map_err(|error| RunError::Io("read the archive", error))
                })?;
            }
            Ok(())
        })
    }

    fn copy_from(&mut self, disk: Disk, from: &Disk, step: &CopyFromStep) -> Result<Disk, RunError> {
        // What the other guest writes is discarded.
        let scratch = self.cache.draft()?;
        let other = self.start(from, &scratch.path().join(TOP))?;
        self.place(&disk, |runner, agent| {
            let (sender, receiver) = mpsc::channel::<Piece>(QUEUE);
            let what = Pack { sources: &step.sources, destination: &step.destination };
            let placed = Place { into: "/", owner: step.owner.as_deref(), mode: step.mode };
            let copy = async {
                let pack = transfer::pack(other.agent(), &what, sender);
                let place = transfer::place(agent, &placed, receiver);
                tokio::join!(pack, place)
            };
            match runner.wait.until(copy)? {
                (Ok(()), placed) => placed.map_err(placing),
                (Err(error), _) => Err(placing(error)),
            }
        })
    }

    fn make_directory(&mut self, disk: Disk, path: &str, owner: Option<&str>) -> Result<Disk, RunError> {
        self.place(&disk, |runner, agent| {
            let directory = [TarEntry::Directory(path)];
            runner.wait.until(small::place_for(agent, &directory, owner))?.map_err(placing)
        })
    }
}

#[cfg(test)]
mod tests;
