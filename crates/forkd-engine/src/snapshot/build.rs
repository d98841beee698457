//! Build: a snapshot that is known by what it is made of, and is made once.
//!
//! ```text
//!   plan ─▶ key ─┬─ there is one with the key ──▶ that one
//!                ├─ it is being made ───────────▶ wait for it
//!                └─ else ───────────────────────▶ boot or derive, with the key in its record
//! ```
//!
//! The key is in the snapshot's record and not in its manifest: it says how this host came to the snapshot, not what the snapshot is. So
//! one that arrives from elsewhere has none. Making it runs to its end even if the first caller goes away: others may be waiting for it.

use std::sync::Arc;

use forkd_image::digest::Digest;
use forkd_store::{ChainError, Tag, TagError};

use crate::blocking::in_place;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::ids::SandboxId;
use crate::library::{Library, Recipe};
use crate::limits::owner::Owner;
use crate::project::Project;
use crate::snapshot::build_key;
use crate::snapshot::derive::NewDerived;
use crate::snapshot::make::{NewSnapshot, Steps};
use crate::snapshot::once::{Awaited, Preparing};
use crate::snapshot::{SnapshotHandle, SnapshotStatus};

/// Characters of a name in the tag of a snapshot that is built for it.
const MAX_NAME: usize = 40;
/// Random characters behind a tag that is taken.
const MAX_RANDOM: usize = 10;

/// What a build makes, unless it exists.
#[derive(Debug)]
pub struct PlannedBuild {
    pub key: Digest,
    what: What,
}

#[derive(Debug)]
enum What {
    Boot(Box<NewSnapshot>),
    Derive(Box<NewDerived>),
}

/// What came of a build.
#[derive(Debug)]
pub struct Built {
    pub snapshot: SnapshotHandle,
    /// Whether there was none when it was asked for.
    pub is_new: bool,
}

impl PlannedBuild {
    /// The tag of the snapshot, if it is made.
    pub fn set_tag(&mut self, tag: Tag) {
        match &mut self.what {
            What::Boot(new) => new.tag = tag,
            What::Derive(new) => new.tag = tag,
        }
    }

    fn with_key(mut self) -> What {
        match &mut self.what {
            What::Boot(new) => new.build_key = Some(self.key),
            What::Derive(new) => new.build_key = Some(self.key),
        }
        self.what
    }
}

impl Engine {
    /// What is to be booted for a recipe, and its key. What the library lacks is made, and takes a download the first time.
    pub async fn plan_boot(
        &self,
        library: &Library,
        recipe: Recipe,
        project: &Project,
        steps: &Steps,
    ) -> Result<PlannedBuild, EngineError> {
        let preparing = Preparing { steps: steps.clone(), ends_with_caller: false };
        let prepared = preparing.prepare(library, recipe).await?;
        let key = build_key::of_booted(&prepared.new, &prepared.sources, project).map_err(not_encoded)?;
        Ok(PlannedBuild { key, what: What::Boot(Box::new(prepared.new)) })
    }

    /// What is to be made of another snapshot, and its key. A parent that is not on disk yet is waited for: its contents are known then.
    pub async fn plan_derived(
        &self,
        new: NewDerived,
        project: &Project,
    ) -> Result<PlannedBuild, EngineError> {
        let parent = new.source.durable().await?.record.tag;
        let stored = in_place(|| self.shared.store.get(&parent)).map_err(ChainError::from)?;
        let stored = stored.ok_or(EngineError::Removed)?;
        let key = build_key::of_derived(&new, &stored.link().digest, project).map_err(not_encoded)?;
        Ok(PlannedBuild { key, what: What::Derive(Box::new(new)) })
    }

    /// The newest snapshot of a project with this key that can be used.
    pub fn find_built(&self, key: &Digest, project: &Project) -> Option<SnapshotHandle> {
        let with_key = self.with_key(key, project);
        let usable = with_key.into_iter().filter(|handle| handle.view().status != SnapshotStatus::Failed);
        usable.max_by_key(|handle| {
            let record = handle.view().record;
            (record.created_unix_ms, record.tag)
        })
    }

    fn with_key(&self, key: &Digest, project: &Project) -> Vec<SnapshotHandle> {
        let mut all = self.shared.snapshots.all();
        all.retain(|handle| {
            let record = handle.view().record;
            record.build_key.as_ref() == Some(key) && record.project == *project
        });
        all
    }

    /// A tag for a snapshot that is built for a name. One that is taken gets random digits.
    pub fn tag_for_build(&self, name: &Tag, key: &Digest) -> Result<Tag, EngineError> {
        let tag = tag_of(name, key, "")?;
        if !self.shared.snapshots.has(&tag) {
            return Ok(tag);
        }
        let random = SandboxId::random().map_err(EngineError::io("get random numbers"))?;
        let random: String = random.as_str().chars().take(MAX_RANDOM).collect();
        Ok(tag_of(name, key, &format!("-{random}"))?)
    }

    /// The snapshot of a plan: one that is there or is being made, or else a new one. With `fresh`, a new one in any case.
    pub async fn build(
        &self,
        planned: PlannedBuild,
        owner: &Owner,
        fresh: bool,
        steps: &Steps,
    ) -> Result<Built, Arc<EngineError>> {
        let (key, project) = (planned.key, owner.project.clone());
        if !fresh && let Some(snapshot) = self.find_built(&key, &project) {
            return Ok(Built { snapshot, is_new: false });
        }
        for failed in self.with_key(&key, &project) {
            if failed.view().status == SnapshotStatus::Failed {
                // One that others depend on, or that another caller has removed, is no obstacle.
                let _ = self.remove_snapshot(failed.tag().as_str(), false).await;
            }
        }
        let (engine, owner, steps) = (self.clone(), owner.clone(), steps.clone());
        let what = planned.with_key();
        let make = async move {
            match what {
                What::Boot(new) => engine.make_for(*new, Some(&owner), &steps).await,
                What::Derive(new) => engine.derive(*new, Some(&owner), &steps).await,
            }
        };
        let snapshot = match fresh {
            true => make.await?,
            false => {
                let find = || self.find_built(&key, &project);
                self.once_for(Awaited::Key(key), find, make).await?
            }
        };
        Ok(Built { snapshot, is_new: true })
    }
}

/// `NAME-0123456789ab`, and what is to be behind it.
fn tag_of(name: &Tag, key: &Digest, end: &str) -> Result<Tag, TagError> {
    let name: String = name.as_str().chars().take(MAX_NAME).collect();
    format!("{name}-{}{end}", key.short()).parse()
}

fn not_encoded(error: serde_json::Error) -> EngineError {
    EngineError::io("encode what a snapshot is made of")(error.into())
}
