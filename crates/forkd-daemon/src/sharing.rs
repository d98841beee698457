//! What every project may use, and which projects have made an image.
//!
//! ```json
//! {"version": 1, "snapshots": [{"tag": "base", "created_unix_ms": 1760000000000}],
//!  "images": [{"id": "sha256:…", "projects": ["default"], "public": true}]}
//! ```
//!
//! A snapshot says itself which project it belongs to. That it is public is said here, since what it is made of never changes;
//! and with the time at which it was made, so that another one that gets its name later is not public. An image of which nothing
//! is said here belongs to the default project.

use std::path::Path;

use forkd_engine::project::Project;
use forkd_engine::record::ZygoteRecord;
use forkd_image::digest::Digest;
use forkd_store::Tag;
use serde::{Deserialize, Serialize};

use crate::kept::{Kept, KeptError};

const FILE: &str = "sharing.json";

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    snapshots: Vec<PublicSnapshot>,
    images: Vec<KnownImage>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublicSnapshot {
    tag: Tag,
    created_unix_ms: u64,
}

impl PublicSnapshot {
    fn of(record: &ZygoteRecord) -> PublicSnapshot {
        PublicSnapshot { tag: record.tag.clone(), created_unix_ms: record.created_unix_ms }
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownImage {
    id: Digest,
    projects: Vec<Project>,
    public: bool,
}

/// Whose an image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageAccess {
    pub projects: Vec<Project>,
    pub public: bool,
}

/// What is shared.
#[derive(Debug)]
pub struct Sharing(Kept<Content>);

impl Sharing {
    pub fn open(home: &Path) -> Result<Sharing, KeptError> {
        Kept::open(home.join(FILE)).map(Sharing)
    }

    /// Whether every project may use a snapshot.
    pub fn is_public(&self, record: &ZygoteRecord) -> bool {
        self.0.look().snapshots.contains(&PublicSnapshot::of(record))
    }

    /// Blocks, as everything that changes something here does.
    pub fn set_snapshot(&self, record: &ZygoteRecord, public: bool) -> Result<(), KeptError> {
        let entry = PublicSnapshot::of(record);
        self.0.change(|content| {
            // Also of an older one that had the name.
            content.snapshots.retain(|other| other.tag != entry.tag);
            if public {
                content.snapshots.push(entry);
            }
        })
    }

    pub fn image(&self, id: Digest) -> ImageAccess {
        let content = self.0.look();
        let known = content.images.iter().find(|image| image.id == id);
        let own = || ImageAccess { projects: vec![Project::default()], public: false };
        known.map_or_else(own, |image| ImageAccess { projects: image.projects.clone(), public: image.public })
    }

    pub fn set_image(&self, id: Digest, public: bool) -> Result<(), KeptError> {
        self.0.change(|content| content.image(id).public = public)
    }

    /// A project has made an image, which may have been there before.
    pub fn made(&self, id: Digest, project: &Project, was_there: bool) -> Result<(), KeptError> {
        self.0.change(|content| {
            let known = content.images.iter().any(|image| image.id == id);
            let image = content.image(id);
            if !known && !was_there {
                image.projects.clear();
            }
            if !image.projects.contains(project) {
                image.projects.push(project.clone());
            }
        })
    }

    /// An image is gone.
    pub fn forget_image(&self, id: Digest) -> Result<(), KeptError> {
        if !self.0.look().images.iter().any(|image| image.id == id) {
            return Ok(());
        }
        self.0.change(|content| content.images.retain(|image| image.id != id))
    }
}

impl Content {
    /// What is said of an image, from now on if nothing was.
    fn image(&mut self, id: Digest) -> &mut KnownImage {
        let found = self.images.iter().position(|image| image.id == id);
        let index = found.unwrap_or_else(|| {
            self.images.push(KnownImage { id, projects: vec![Project::default()], public: false });
            self.images.len() - 1
        });
        &mut self.images[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: &str, created_unix_ms: u64) -> ZygoteRecord {
        let text = format!(
            r#"{{"tag":"{tag}","parent":null,"branched_from":null,"created_unix_ms":{created_unix_ms},"pause_us":null,
            "shape":{{"vcpus":1,"memory_bytes":67108864,"devices":{{"console":true,"console_input":false,"disk":null,
            "disk_layers":0,"net":null,"vsock":null,"entropy":false,"mailbox":false}},"image":null}},"layers":[],
            "generation":1,"promised":true}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_snapshot_is_public_and_one_of_the_same_name_is_not() {
        let home = tempfile::tempdir().unwrap();
        let sharing = Sharing::open(home.path()).unwrap();
        let (base, later) = (record("base", 1), record("base", 2));
        assert!(!sharing.is_public(&base));
        sharing.set_snapshot(&base, true).unwrap();
        assert!(
            sharing.is_public(&base) && !sharing.is_public(&later) && !sharing.is_public(&record("x", 1))
        );
        let again = Sharing::open(home.path()).unwrap();
        assert!(again.is_public(&base));
        again.set_snapshot(&later, true).unwrap();
        assert!(!again.is_public(&base) && again.is_public(&later));
        again.set_snapshot(&later, false).unwrap();
        assert!(!again.is_public(&later));
    }

    #[test]
    fn an_image_is_whose_it_was_and_whoever_made_it_too() {
        let home = tempfile::tempdir().unwrap();
        let sharing = Sharing::open(home.path()).unwrap();
        let (one, old) = (Digest::of(b"one"), Digest::of(b"old"));
        let team: Project = "team".parse().unwrap();
        assert_eq!(sharing.image(old).projects, [Project::default()]);
        sharing.made(one, &team, false).unwrap();
        sharing.made(old, &team, true).unwrap();
        assert_eq!(sharing.image(one).projects, vec![team.clone()]);
        assert_eq!(sharing.image(old).projects, [Project::default(), team]);
        sharing.made(one, &Project::default(), true).unwrap();
        assert_eq!(sharing.image(one).projects.len(), 2);
        sharing.set_image(one, true).unwrap();
        assert!(Sharing::open(home.path()).unwrap().image(one).public);
        sharing.forget_image(one).unwrap();
        assert_eq!(sharing.image(one), ImageAccess { projects: vec![Project::default()], public: false });
    }
}
