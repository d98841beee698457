//! What each caller sees of a daemon that others use too.
//!
//! ```text
//!   of its own project           all of it
//!   of another one               what an admin has made public: snapshots to fork, images to make snapshots of
//!   with the scope admin         everything
//! ```
//!
//! What a caller does not see is not there: it is answered as what does not exist. Handlers find sandboxes, snapshots and images
//! here, never at the engine or in the library.

use forkd_api::error::ErrorCode;
use forkd_api::hint::HintCode;
use forkd_api::library as seen;
use forkd_api::token::TokenLimits;
use forkd_engine::project::Project;
use forkd_engine::record::ZygoteRecord;
use forkd_engine::{
    Allowance, EngineError, Owner, Removal, SandboxHandle, SandboxView, SnapshotHandle, SnapshotView, Source,
};
use forkd_image::images::{Image, ImageError};
use forkd_store::Tag;

use crate::app::App;
use crate::auth::Caller;
use crate::error::{Answer, ApiError};
use crate::library_view;
use crate::sharing::ImageAccess;

/// What is repeated of a name that means nothing.
const SHOWN: usize = 80;

impl App {
    pub fn sandbox(&self, caller: &Caller, id: &str) -> Answer<SandboxHandle> {
        forkd_proto::passes!();
        let sandbox = self.engine.sandbox(id)?;
        match caller.owns(&sandbox.view().record.project) {
            true => Ok(sandbox),
            false => Err(EngineError::NoSandbox(shown(id)).into()),
        }
    }

    pub fn sandboxes(&self, caller: &Caller) -> Vec<SandboxView> {
        let mut views = self.engine.sandboxes();
        views.retain(|view| caller.owns(&view.record.project));
        views
    }

    /// A snapshot that the caller may fork from, by its tag or by the name of a template that was built.
    pub fn snapshot(&self, caller: &Caller, name: &str) -> Answer<SnapshotHandle> {
        let exact = self.engine.snapshot(name).ok();
        let found = exact.or_else(|| self.engine.snapshot(self.protocol.snapshot(name)?.as_str()).ok());
        let visible = found.filter(|snapshot| self.sees(caller, &snapshot.view()));
        visible.ok_or_else(|| EngineError::NoSnapshot(shown(name)).into())
    }

    /// What a name means to the caller: a snapshot that it may fork from, or else a sandbox.
    pub fn named(&self, caller: &Caller, name: &str) -> Answer<Source> {
        forkd_proto::passes!();
        let snapshot = self.snapshot(caller, name).map(Source::Snapshot);
        let found = snapshot.or_else(|_| self.sandbox(caller, name).map(Source::Sandbox));
        found.map_err(|_| EngineError::NoSource(shown(name)).into())
    }

    /// One that is the caller's to change.
    pub fn own_snapshot(&self, caller: &Caller, name: &str) -> Answer<SnapshotHandle> {
        let snapshot = self.snapshot(caller, name)?;
        match caller.owns(&snapshot.view().record.project) {
            true => Ok(snapshot),
            false => Err(crate::auth::not_yours(&format!("snapshot {}", snapshot.tag()))),
        }
    }

    pub fn snapshots(&self, caller: &Caller) -> Vec<SnapshotView> {
        let mut views = self.engine.snapshots();
        views.retain(|view| self.sees(caller, view));
        views
    }

    /// Whether the caller may fork from it.
    pub fn sees(&self, caller: &Caller, view: &SnapshotView) -> bool {
        caller.owns(&view.record.project) || self.sharing.is_public(&view.record)
    }

    /// Removes a snapshot of the caller's.
    pub async fn remove_snapshot(&self, caller: &Caller, name: &str, removal: Removal) -> Answer<Vec<Tag>> {
        let tag = self.own_snapshot(caller, name)?.tag();
        let project = (!caller.sees_all()).then_some(&caller.project);
        Ok(self.engine.remove_snapshot_of(project, tag.as_str(), removal).await?)
    }

    /// Removes a name of a snapshot of the caller's, which stays. `None` if it is not one of its other names.
    pub async fn remove_name(&self, caller: &Caller, name: &str) -> Answer<Option<Tag>> {
        if !self.engine.is_name(name) {
            return Ok(None);
        }
        let tag = self.own_snapshot(caller, name)?.tag();
        let name: Tag = name.parse().map_err(EngineError::Tag)?;
        self.engine.remove_name(&tag, name.clone()).await?;
        Ok(Some(name))
    }

    /// Gives a snapshot of the caller's another name. One that another snapshot has is moved only if that is the caller's, too.
    pub async fn add_name(
        &self,
        caller: &Caller,
        snapshot: &SnapshotHandle,
        name: Tag,
        force: bool,
    ) -> Answer<()> {
        self.refuse_hidden(caller, &name)?;
        let caller = caller.clone();
        let may_move = move |other: &ZygoteRecord| force && caller.owns(&other.project);
        Ok(self.engine.add_name(snapshot, name, may_move).await?)
    }

    /// Gives a snapshot the name that it was built under. It is moved from one that was built, and from no other.
    pub async fn add_built_name(&self, caller: &Caller, snapshot: &SnapshotHandle, name: Tag) -> Answer<()> {
        self.check_built_name(caller, &name)?;
        let caller = caller.clone();
        let may_move = move |other: &ZygoteRecord| may_move_built(&caller, other);
        Ok(self.engine.add_name(snapshot, name, may_move).await?)
    }

    /// Gives a branch the name that it was made under. It is moved from another branch of the caller's, and from nothing else.
    pub async fn add_branch_name(&self, caller: &Caller, branch: &SnapshotHandle, name: Tag) -> Answer<()> {
        self.check_branch_name(caller, &name)?;
        let caller = caller.clone();
        let may_move = move |other: &ZygoteRecord| may_move_branch(&caller, other);
        Ok(self.engine.add_name(branch, name, may_move).await?)
    }

    /// Refuses a name that a branch of the caller's could not get.
    pub fn check_branch_name(&self, caller: &Caller, name: &Tag) -> Answer<()> {
        let Ok(other) = self.engine.snapshot(name.as_str()) else { return Ok(()) };
        match self.engine.is_name(name.as_str()) && may_move_branch(caller, &other.view().record) {
            true => Ok(()),
            false => Err(EngineError::NameTaken(name.clone()).into()),
        }
    }

    /// Refuses a name that a snapshot which the caller builds could not get.
    pub fn check_built_name(&self, caller: &Caller, name: &Tag) -> Answer<()> {
        self.refuse_hidden(caller, name)?;
        let Ok(other) = self.engine.snapshot(name.as_str()) else { return Ok(()) };
        match self.engine.is_name(name.as_str()) {
            true if may_move_built(caller, &other.view().record) => Ok(()),
            true => Err(ApiError::new(
                ErrorCode::NameTaken,
                format!(
                    "the name {name} is in use: it is a name of snapshot {}, which no build made",
                    other.tag()
                ),
            )
            .hint(HintCode::RemoveNames)),
            false => Err(EngineError::NameTaken(name.clone()).into()),
        }
    }

    /// Of what is another's, not even its tag is told.
    fn refuse_hidden(&self, caller: &Caller, name: &Tag) -> Answer<()> {
        match self.engine.snapshot(name.as_str()) {
            Ok(other) if !self.sees(caller, &other.view()) => {
                Err(EngineError::NameTaken(name.clone()).into())
            }
            _ => Ok(()),
        }
    }

    /// An image that the caller may use, by a name, an id or its beginning. Blocks.
    pub fn image(&self, caller: &Caller, name: &str) -> Answer<Image> {
        let image = self.library.images.find(name)?;
        match self.sees_image(caller, &image) {
            true => Ok(image),
            false => Err(ImageError::Unknown(shown(name)).into()),
        }
    }

    /// Those that the caller may use. Blocks.
    pub fn images(&self, caller: &Caller) -> Answer<Vec<Image>> {
        let mut images = self.library.images.list()?;
        images.retain(|image| self.sees_image(caller, image));
        Ok(images)
    }

    /// An image as the API says it.
    pub fn shown_image(&self, caller: &Caller, image: &Image) -> seen::Image {
        seen::Image { summary: self.shown_summary(caller, image), ..library_view::image(image) }
    }

    pub fn shown_summary(&self, caller: &Caller, image: &Image) -> seen::ImageSummary {
        let ImageAccess { projects, public } = self.sharing.image(image.id());
        let projects =
            projects.into_iter().filter(|project| caller.owns(project)).map(String::from).collect();
        seen::ImageSummary { projects, public: public || image.shared, ..library_view::summary(image) }
    }

    /// Makes an image, which is a project's from then on. Blocks.
    pub fn make_image(&self, project: &Project, make: impl FnOnce() -> Answer<Image>) -> Answer<Image> {
        let before = self.library.images.ids().map_err(ImageError::from)?;
        let image = make()?;
        self.sharing.made(image.id(), project, before.contains(&image.id()))?;
        Ok(image)
    }

    fn sees_image(&self, caller: &Caller, image: &Image) -> bool {
        // The library that daemons share is everybody's.
        image.shared || {
            let access = self.sharing.image(image.id());
            access.public || access.projects.iter().any(|project| caller.owns(project))
        }
    }

    /// Which project a sandbox belongs to that a caller makes of a snapshot: its own, if the snapshot is its own or public. What
    /// an admin makes of others' stays theirs.
    pub fn project_for(&self, caller: &Caller, snapshot: &SnapshotView) -> Project {
        match self.sharing.is_public(&snapshot.record) {
            true => caller.project.clone(),
            false => snapshot.record.project.clone(),
        }
    }

    /// Who makes something for a project, and how much that may be.
    pub fn owner(&self, caller: &Caller, project: Project) -> Owner {
        let project_allowance = allowance(self.tokens.limits_of(&project));
        Owner { name: caller.name.clone(), allowance: allowance(caller.limits), project, project_allowance }
    }

    /// The same for what is the caller's own.
    pub fn own(&self, caller: &Caller) -> Owner {
        self.owner(caller, caller.project.clone())
    }
}

/// Whether a name of a snapshot may be moved to one that the caller builds under it.
fn may_move_built(caller: &Caller, other: &ZygoteRecord) -> bool {
    caller.owns(&other.project) && other.build_key.is_some()
}

fn may_move_branch(caller: &Caller, other: &ZygoteRecord) -> bool {
    caller.owns(&other.project) && other.branched_from.is_some()
}

fn allowance(limits: TokenLimits) -> Allowance {
    let TokenLimits { sandboxes, memory_mib, vcpus, snapshots, snapshot_mib } = limits;
    let bytes = |mib: u64| mib.saturating_mul(1 << 20);
    let (memory_bytes, snapshot_bytes) = (memory_mib.map(bytes), snapshot_mib.map(bytes));
    Allowance { sandboxes, memory_bytes, vcpus, snapshots, snapshot_bytes }
}

fn shown(name: &str) -> String {
    name.chars().take(SHOWN).collect()
}
