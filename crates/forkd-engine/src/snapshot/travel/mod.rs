//! Snapshots that leave this host, and those that come from another: in a file, or through a registry.
//!
//! ```text
//!   departure.rs   a snapshot with all that it stands on ──▶ streams ──▶ forkd-hub: a file, a registry
//!   arrival.rs     forkd-hub ──▶ layers, an image, the chain from its base to its head ──▶ a snapshot like any other
//!   partial.rs     what came of an arrival that failed, for the next one
//!   arriving.rs    what is published below one that arrives, for the next daemon if this one is killed
//!   sent.rs        how a snapshot was sent or came, so that it is the same the next time
//!   variant.rs     which of several snapshots under one tag fits this host
//!   user_memory.rs whether a snapshot has memory of the users of a sandbox, which its owner has to confirm
//! ```
//!
//! What travels is named by contents: snapshots by the digests of their manifests, disks by those of their layers. Names, projects and
//! tokens stay where they are. Everything that arrives is untrusted: manifests are checked before anything is fetched, frames before they
//! are written, layers when they are whole; the state is decoded by the VM process, behind its walls.

pub mod arrival;
pub(crate) mod arriving;
pub mod departure;
pub(crate) mod partial;
pub(crate) mod sent;
pub(crate) mod user_memory;
pub(crate) mod variant;

use std::io;

use forkd_hub::{About, Artifact, Progress, Stream};
use forkd_image::images::Config;
use forkd_proto::agent::{OLDEST_VERSION, VERSION as AGENT_VERSION};
use forkd_proto::host_cpu::Lacking;
use forkd_store::{Digest, Manifest, ManifestError, SealedManifest, Tag};
use serde::{Deserialize, Serialize};

use self::arrival::{Destination, Origin};
use self::departure::Departure;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::record::{self, PortableRecord};
use crate::snapshot::SnapshotHandle;

/// The form of what travels beside the streams.
const VERSION: u32 = 1;

impl Engine {
    /// Opens a snapshot that is on disk, to be sent elsewhere. Blocks.
    pub fn depart(&self, tag: &Tag) -> Result<Departure, EngineError> {
        Departure::open(&self.shared, tag)
    }

    /// Keeps how a snapshot was sent, and to which repository, so that none of it is sent again. Blocks.
    pub fn departed(&self, departure: &Departure, sent: &[Stream], repository: &str) {
        departure.keep(&self.shared, sent, repository);
    }

    /// The digest of a snapshot from elsewhere, and the tags of those here that are the same. Blocks.
    pub fn same_as(&self, artifact: &Artifact) -> Result<(Digest, Vec<Tag>), EngineError> {
        let head = snapshot_digest(artifact.about())?;
        let stored = self.shared.store.list()?.into_iter().filter_map(|listed| listed.stored.ok());
        Ok((head, stored.filter(|stored| stored.sealed.digest == head).map(|stored| stored.tag).collect()))
    }

    /// Takes in a snapshot from elsewhere. It can be forked from when this returns. Blocks until then, or until `progress` says that
    /// nobody wants it; called within a tokio runtime, off its workers.
    pub fn arrive(
        &self,
        artifact: &Artifact,
        origin: &dyn Origin,
        destination: &Destination,
        progress: &dyn Progress,
    ) -> Result<SnapshotHandle, EngineError> {
        arrival::receive(&self.shared, artifact, origin, destination, progress)
    }
}

/// The digest of the snapshot that an artifact says it has: of its manifest. All that it says of the snapshot's chain is checked.
pub fn snapshot_digest(about: &About) -> Result<Digest, TravelError> {
    let chain = Itinerary::from_about(about)?.chain()?;
    Ok(chain.last().ok_or(TravelError::Count { found: 0 })?.sealed.digest)
}

/// What a receiver must know before it fetches anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Itinerary {
    version: u32,
    /// What the sender calls it.
    pub name: String,
    /// The manifests from the base to the head, as they were sealed.
    pub manifests: Vec<String>,
    /// What is known of the image below the first disk, if there is one.
    pub image: Option<ImageNotes>,
    /// The version of the head's saved CPUs and devices. The first one is not written.
    #[serde(default = "first_state", skip_serializing_if = "is_first_state")]
    pub state_version: u32,
}

/// Of states that do not say.
fn first_state() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_first_state(version: &u32) -> bool {
    *version == first_state()
}

/// What is known of an image beside its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImageNotes {
    pub config: Config,
    pub default_user: String,
}

/// What came, or is to go, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TravelError {
    #[error(
        "snapshot {tag} has format version 1, which cannot be transferred; convert it with `forkd snapshot compact {tag}`"
    )]
    OldFormat { tag: String },
    #[error("the snapshot's metadata has an invalid form")]
    Syntax(#[from] serde_json::Error),
    #[error(
        "the snapshot's metadata has version {found}, expected {VERSION}: it was made by a newer forkd; update this one"
    )]
    Version { found: u32 },
    #[error("manifest {index} of the snapshot is invalid")]
    Manifest { index: usize, source: ManifestError },
    #[error("manifest {index} of the snapshot is invalid: {reason}")]
    Record { index: usize, reason: String },
    #[error("{found} manifests, expected 1 to {}", forkd_store::MAX_CHAIN)]
    Count { found: usize },
    #[error("the manifests are not a chain: number {index} is not the parent that the next one names")]
    NoChain { index: usize },
    #[error("the snapshot cannot run on this host: {lacking}")]
    Host { lacking: Lacking },
    #[error(
        "the agent in the snapshot speaks version {found}, this forkd {OLDEST_VERSION} to {AGENT_VERSION}; update this forkd"
    )]
    Agent { found: u32 },
    #[error("the snapshot needs {} MiB of memory, {} MiB are available", needed.div_ceil(1 << 20), available >> 20)]
    Memory { needed: u64, available: u64 },
    #[error("there is no stream with {what} {name}")]
    NoStream { what: &'static str, name: String },
    #[error("{what} {name} has {found} bytes, expected {expected}")]
    Size { what: &'static str, name: String, found: u64, expected: u64 },
    #[error("layer {name} of its disks is damaged: its contents have the digest {found}")]
    Layer { name: Digest, found: Digest },
    #[error("the map of layer {name} is invalid")]
    LayerMap { name: Digest, source: forkd_store::SparseError },
    #[error("{name}, which the snapshot is based on, was removed during the transfer; try again")]
    Gone { name: Digest },
    #[error("cannot be fetched")]
    Fetch(#[from] forkd_hub::FetchError),
    #[error("cannot {what}")]
    File { what: &'static str, source: io::Error },
    #[error("cancelled")]
    Cancelled,
}

impl Itinerary {
    pub fn to_about(&self) -> Result<About, TravelError> {
        Ok(serde_json::from_value(serde_json::to_value(self)?)?)
    }

    /// Reads what came. Its manifests are checked when they are asked for.
    pub fn from_about(about: &About) -> Result<Itinerary, TravelError> {
        // Read on its own first: a newer one has other fields.
        let found = about.get("version").and_then(serde_json::Value::as_u64).unwrap_or(0);
        if found != u64::from(VERSION) {
            return Err(TravelError::Version { found: u32::try_from(found).unwrap_or(u32::MAX) });
        }
        Ok(serde_json::from_value(about.clone().into())?)
    }

    /// The manifests, each the parent of the next.
    pub fn chain(&self) -> Result<Vec<Stage>, TravelError> {
        let found = self.manifests.len();
        if !(1..=forkd_store::MAX_CHAIN).contains(&found) {
            return Err(TravelError::Count { found });
        }
        let mut stages: Vec<Stage> = Vec::with_capacity(found);
        for (index, text) in self.manifests.iter().enumerate() {
            let mut stage = Stage::parse(index, text)?;
            let below = stages.last();
            if stage.sealed.manifest.parent != below.map(|below| below.sealed.digest) {
                return Err(TravelError::NoChain { index: index.saturating_sub(1) });
            }
            // Whatever it says of itself.
            if below.is_some_and(|below| below.record.has_user_memory()) {
                stage.record.user_memory = Some(true);
            }
            stages.push(stage);
        }
        Ok(stages)
    }
}

/// A snapshot of a chain that travels.
#[derive(Debug, Clone)]
pub(crate) struct Stage {
    pub text: String,
    pub sealed: SealedManifest,
    pub record: PortableRecord,
}

impl Stage {
    fn parse(index: usize, text: &str) -> Result<Stage, TravelError> {
        let sealed =
            Manifest::parse(text.as_bytes()).map_err(|source| TravelError::Manifest { index, source })?;
        let wrong = |reason: String| TravelError::Record { index, reason };
        let manifest = &sealed.manifest;
        let record: PortableRecord = record::from_object(manifest.about.clone()).map_err(wrong)?;
        let (layers, disks) = (&record.layers, record.shape.devices.disks.len());
        // Counts of a stranger's: their sum may be more than there can be.
        let expected =
            layers.iter().try_fold(usize::from(record.has_image), |sum, count| sum.checked_add(*count));
        let counted = expected == Some(manifest.disk_layers.len());
        if layers.len() != disks || (record.has_image && disks == 0) || !counted {
            return Err(wrong(format!(
                "{} disk layers for {disks} disks with {layers:?} of them",
                manifest.disk_layers.len()
            )));
        }
        if record.shape.memory_bytes != manifest.layout.size() {
            return Err(wrong(format!(
                "{} bytes of memory, but a shape with {}",
                manifest.layout.size(),
                record.shape.memory_bytes
            )));
        }
        if record.shape.image.is_some() {
            return Err(wrong("it names an image of another host".into()));
        }
        if let Some(policy) = &record.policy {
            policy.check().map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Stage { text: text.to_owned(), sealed, record })
    }

    /// What its streams are called.
    pub fn name(&self) -> String {
        self.sealed.digest.to_string()
    }
}

#[cfg(test)]
mod tests {
    use forkd_store::{Content, Cpu, FileEntry, Layout, Region};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// What a manifest says of a snapshot of a guest with a disk.
    fn record() -> Value {
        json!({
            "shape": {"vcpus": 1, "memory_bytes": 1 << 20, "image": null, "devices": {
                "console": true, "console_input": false, "disk": null, "disk_layers": 0, "net": null,
                "vsock": null, "entropy": false, "mailbox": false}},
            "has_image": false, "layers": [], "generation": 2, "policy": null, "user_memory": false,
        })
    }

    /// An artifact with a chain of manifests, each sealed and with one of these records.
    fn about(records: &[Value]) -> Option<About> {
        let entry = FileEntry { size: 4096, digest: Digest::of(b"") };
        let mut parent = None;
        let mut manifests = Vec::new();
        for record in records {
            let manifest = Manifest {
                parent,
                created_unix_ms: 1,
                cpu: Cpu { vendor: None, features: Vec::new(), tsc_khz: None },
                layout: Layout::new(vec![Region { address: 0, length: 1 << 20 }]).unwrap(),
                about: record.as_object()?.clone(),
                disk_layers: Vec::new(),
                state: entry,
                memory: entry,
                content: Content::Framed { map: entry },
            };
            let (sealed, text) = manifest.seal().ok()?;
            parent = Some(sealed.digest);
            manifests.push(String::from_utf8(text).ok()?);
        }
        json!({"version": 1, "name": "one", "manifests": manifests, "image": null}).as_object().cloned()
    }

    #[test]
    fn what_is_above_somebody_s_memory_has_it() {
        let said = |words: &str| {
            let mut record = record();
            record["user_memory"] = serde_json::from_str(words).unwrap();
            record
        };
        let chain =
            |records: &[Value]| Itinerary::from_about(&about(records).unwrap()).unwrap().chain().unwrap();
        let found = |records: &[Value]| -> Vec<bool> {
            chain(records).iter().map(|stage| stage.record.has_user_memory()).collect()
        };
        assert_eq!(found(&[said("false"), said("false")]), [false, false]);
        assert_eq!(found(&[said("false"), said("true"), said("false")]), [false, true, true]);
        // One that does not say it, and was not booted.
        assert_eq!(found(&[said("null"), said("false")]), [true, true]);
        let digest = snapshot_digest(&about(&[said("false")]).unwrap()).unwrap();
        assert_eq!(digest, chain(&[said("false")])[0].sealed.digest);
    }

    /// A value in the place of another one.
    fn any_value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
            prop::collection::vec(any::<u64>(), 0..4).prop_map(Value::from),
            Just(json!({})),
        ]
    }

    proptest! {
        /// Every manifest is sealed as it should be, and what it says is not.
        #[test]
        fn any_record_is_one_or_is_refused(
            field in prop::sample::select(vec![
                "shape", "shape.vcpus", "shape.memory_bytes", "shape.image", "shape.devices", "shape.devices.disk",
                "shape.devices.disk_layers", "shape.devices.vsock", "shape.agent_version", "has_image", "layers",
                "generation", "policy", "user_memory", "other",
            ]),
            value in any_value(),
        ) {
            let mut record = record();
            let pointer = format!("/{}", field.replace('.', "/"));
            match record.pointer_mut(&pointer) {
                Some(place) => *place = value,
                None => record[field] = value,
            }
            if let Some(about) = about(&[record])
                && let Ok(itinerary) = Itinerary::from_about(&about)
                && let Ok(chain) = itinerary.chain()
            {
                let shape = &chain[0].record.shape;
                prop_assert_eq!((shape.memory_bytes, shape.image), (1 << 20, None));
                prop_assert_eq!(chain[0].record.layers.len(), shape.devices.disks.len());
            }
        }

        #[test]
        fn any_itinerary_is_one_or_is_refused(
            field in prop::sample::select(vec!["version", "name", "manifests", "image", "state_version", "x"]),
            value in any_value(),
            byte in any::<prop::sample::Index>(),
            bit in 0_u8..7,
        ) {
            let mut about = about(&[record(), record()]).unwrap();
            let good = snapshot_digest(&about).unwrap();
            // A bit of the manifest of the head: its seal is broken, or it is not read at all.
            let mut flipped = about.clone();
            let text = flipped["manifests"][1].as_str().unwrap().to_owned();
            let mut bytes = text.into_bytes();
            let at = byte.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if let Ok(text) = String::from_utf8(bytes) {
                flipped["manifests"][1] = text.into();
                prop_assert!(snapshot_digest(&flipped).is_err(), "bit {} of byte {}", bit, at);
            }
            about.insert(field.to_owned(), value);
            if let Ok(digest) = snapshot_digest(&about) {
                prop_assert_eq!(digest, good);
            }
        }
    }
}
