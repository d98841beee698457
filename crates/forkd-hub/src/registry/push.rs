//! Pushing a snapshot: only what the registry does not have, and the tag last.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use forkd_source::digest::Digest;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::{RegistryError, Repository};
use crate::artifact::{MAX_VARIANTS, VARIANT};
use crate::config::Stream;
use crate::fetch::TRANSFERS;
use crate::manifest::{
    self, Annotations, Descriptor, Document, INDEX_TYPE, Index, MANIFEST_TYPE, MAX_MANIFEST, ManifestError,
};
use crate::outgoing::{OutgoingBlob, OutgoingError, Prepared, Snapshot};
use crate::pack::PackError;
use crate::progress::{Progress, Tracker};
use crate::role::ARTIFACT_TYPE;
use crate::table::Blob;
use crate::trust::{PublicKey, VerifyError, verify};
use crate::workers::Workers;

/// Characters of a variant's name.
const MAX_NAME: usize = 63;

/// A snapshot was not pushed. The tag is what it was before.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error("{reference} names a digest; push to a tag instead")]
    ToDigest { reference: String },
    #[error(
        "{name:?} is not a valid repository to mount from; expected its name without the registry: team/base"
    )]
    MountFrom { name: String },
    #[error(transparent)]
    Snapshot(#[from] OutgoingError),
    #[error("cannot pack stream {name:?}")]
    Pack { name: String, source: PackError },
    #[error("cannot push {what}")]
    Registry { what: String, source: RegistryError },
    #[error("{name:?} is not a valid name of a variant: expected 1-{MAX_NAME} of a-z, 0-9 and '._-'")]
    VariantName { name: String },
    #[error(
        "cannot add a variant to {reference}: it cannot be read as a snapshot; push without a variant to replace it"
    )]
    NotASnapshot { reference: String, source: ManifestError },
    #[error("{reference} lists {MAX_VARIANTS} variants already, which is the most")]
    TooManyVariants { reference: String },
    #[error(
        "cannot add a variant to {reference}: what it names now must be signed with the same key; check it, and sign it first"
    )]
    NotSigned { reference: String, source: Box<VerifyError> },
    #[error("cannot describe the variants")]
    Index(#[source] ManifestError),
    #[error("cancelled")]
    Cancelled,
}

/// How a snapshot is pushed.
#[derive(Debug, Clone, Default)]
pub struct PushOptions {
    /// Repositories of the same registry that may have some of the blobs, for instance the parent's.
    pub mount_from: Vec<String>,
    /// Adds the snapshot to those that the tag names, under this name, in the place of the one that has the name. Without it, the tag
    /// names this snapshot alone. If two add a variant at the same moment, one is lost: registries have no compare-and-swap for tags.
    pub variant: Option<String>,
    /// What the tag names already must be signed with this key for a variant to be added: whoever signs the tag then signs that, too.
    pub variants_key: Option<PublicKey>,
}

/// What a push did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Of the manifest.
    pub digest: Digest,
    /// Of what the tag names now: the manifest, or the index that lists it. This is what is signed.
    pub root: Digest,
    /// With the tables to remember.
    pub streams: Vec<Stream>,
    /// Bytes of blobs that were sent.
    pub sent: u64,
    /// Bytes of blobs that were mounted from other repositories.
    pub mounted: u64,
    /// Bytes of blobs that the repository had.
    pub present: u64,
}

/// How a blob came to be in the registry.
enum Way {
    Sent,
    Mounted,
    Present,
}

/// What the blobs of a push share.
struct Push<'a, 'env> {
    repository: &'a Repository,
    workers: &'a Workers<'env>,
    snapshot: Snapshot<'env>,
    mount_from: &'a [String],
    progress: &'env dyn Progress,
    tracker: Tracker<'a>,
    /// Blobs that this push takes care of: equal blobs are sent once.
    taken: Mutex<HashSet<Digest>>,
    counts: [AtomicU64; 3],
}

impl Repository {
    pub(super) async fn push_snapshot<'env>(
        &self,
        workers: &Workers<'env>,
        snapshot: Snapshot<'env>,
        options: &PushOptions,
        progress: &'env dyn Progress,
    ) -> Result<Pushed, PushError> {
        let tag = self.push_tag()?;
        if let Some(name) = options.mount_from.iter().find(|name| !is_repository(name)) {
            return Err(PushError::MountFrom { name: name.chars().take(100).collect() });
        }
        if let Some(name) = options.variant.as_ref().filter(|name| !is_variant(name)) {
            return Err(PushError::VariantName { name: name.chars().take(100).collect() });
        }
        if options.variant.is_some() {
            // Before gigabytes are sent. What the tag names then is checked again.
            self.variants(tag, options.variants_key.as_ref()).await?;
        }
        let prepared = Prepared::new(snapshot)?;
        let push = Push {
            repository: self,
            workers,
            snapshot,
            mount_from: &options.mount_from,
            progress,
            tracker: Tracker::new(progress, prepared.total()),
            taken: Mutex::default(),
            counts: Default::default(),
        };
        let blobs = stream::iter(prepared.blobs()).map(|blob| push.blob(blob));
        let blobs: Vec<Blob> = blobs.buffered(TRANSFERS).try_collect().await?;

        let documents = prepared.documents(blobs)?;
        let failed = |what: &str| {
            let what = what.to_owned();
            move |source| PushError::Registry { what, source }
        };
        self.upload_small(&Bytes::from(documents.config)).await.map_err(failed("the config"))?;
        let by_digest = documents.manifest_digest.to_string();
        let stored = self.put_manifest(&by_digest, MANIFEST_TYPE, &documents.manifest).await;
        stored.map_err(failed("the manifest"))?;
        let root = match &options.variant {
            None => {
                let stored = self.put_manifest(tag, MANIFEST_TYPE, &documents.manifest).await;
                stored.map_err(failed("the tag"))?;
                documents.manifest_digest
            }
            Some(name) => {
                let listed = self.variants(tag, options.variants_key.as_ref()).await?;
                self.add_variant(tag, listed, name, &documents.manifest, snapshot.annotations).await?
            }
        };
        let [sent, mounted, present] = push.counts.map(AtomicU64::into_inner);
        Ok(Pushed {
            digest: documents.manifest_digest,
            root,
            streams: documents.streams,
            sent,
            mounted,
            present,
        })
    }

    /// What the tag names, as an index lists it. With a key, all of it is signed with that.
    async fn variants(&self, tag: &str, key: Option<&PublicKey>) -> Result<Vec<Descriptor>, PushError> {
        let bytes = match self.get_manifest(tag, MAX_MANIFEST).await {
            Ok(bytes) => bytes,
            Err(RegistryError::NotFound { .. }) => return Ok(Vec::new()),
            Err(source) => return Err(PushError::Registry { what: "the index".into(), source }),
        };
        let listed = self.listed(&bytes)?;
        if let Some(key) = key {
            let signed = verify::find(self, Digest::of(&bytes), std::slice::from_ref(key)).await;
            let failed =
                |source| PushError::NotSigned { reference: self.reference(), source: Box::new(source) };
            signed.map_err(failed)?;
        }
        Ok(listed)
    }

    /// Sets the tag to an index of what it names and of this manifest. Returns the index's digest.
    async fn add_variant(
        &self,
        tag: &str,
        mut listed: Vec<Descriptor>,
        name: &str,
        manifest: &[u8],
        annotations: &Annotations,
    ) -> Result<Digest, PushError> {
        let failed = |source| PushError::Registry { what: "the index".into(), source };
        let mut annotations = annotations.clone();
        annotations.insert(VARIANT.to_owned(), name.to_owned());
        let variant = entry(manifest, annotations);
        let is_same = |entry: &Descriptor| {
            entry.digest == variant.digest
                || entry.annotations.get(VARIANT).is_some_and(|other| other == name)
        };
        match listed.iter().position(is_same) {
            Some(place) => {
                listed.retain(|entry| !is_same(entry));
                listed.insert(place, variant);
            }
            None if listed.len() >= MAX_VARIANTS => {
                return Err(PushError::TooManyVariants { reference: self.reference() });
            }
            None => listed.push(variant),
        }
        let index = Index {
            schema_version: 2,
            media_type: INDEX_TYPE.into(),
            artifact_type: Some(ARTIFACT_TYPE.into()),
            manifests: listed,
        };
        let index = manifest::encode(&index).map_err(PushError::Index)?;
        self.put_manifest(tag, INDEX_TYPE, &index).await.map_err(failed)?;
        Ok(Digest::of(&index))
    }

    /// What a manifest or an index would be in an index.
    fn listed(&self, bytes: &[u8]) -> Result<Vec<Descriptor>, PushError> {
        let other = |source| PushError::NotASnapshot { reference: self.reference(), source };
        match Document::parse(bytes).map_err(other)? {
            Document::Index(index) => Ok(index.manifests),
            Document::Manifest(manifest) => {
                manifest.check_type().map_err(other)?;
                Ok(vec![entry(bytes, manifest.annotations)])
            }
        }
    }

    fn push_tag(&self) -> Result<&str, PushError> {
        match (self.reference.digest(), self.reference.tag()) {
            (Some(_), _) => Err(PushError::ToDigest { reference: self.reference() }),
            (None, tag) => Ok(tag.unwrap_or("latest")),
        }
    }
}

/// Whether this is a name that can be part of an address as it is.
pub(super) fn is_repository(name: &str) -> bool {
    let is_part = |part: &str| {
        part.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
    };
    name.len() <= 255 && name.split('/').all(is_part)
}

/// The line of an index that lists a manifest: a descriptor without a platform, told from others by its annotations.
fn entry(manifest: &[u8], annotations: Annotations) -> Descriptor {
    Descriptor {
        artifact_type: Some(ARTIFACT_TYPE.into()),
        annotations,
        ..Descriptor::new(MANIFEST_TYPE, Digest::of(manifest), manifest.len() as u64)
    }
}

fn is_variant(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits)
}

impl<'env> Push<'_, 'env> {
    /// Brings one blob to the registry; returns its line of the table.
    async fn blob(&self, outgoing: OutgoingBlob<'env>) -> Result<Blob, PushError> {
        if let Some(remembered) = outgoing.remembered
            && let Some(way) = self.without_bytes(remembered).await?
        {
            self.count(way, remembered.size());
            self.tracker.advance(outgoing.raw);
            return Ok(remembered.clone());
        }
        let (job, number, progress) = (outgoing.job, outgoing.number, self.progress);
        let packed = self.workers.run(move || job.blob(number, &|| progress.is_cancelled())).await;
        let packed = packed.map_err(|source| match source {
            PackError::Cancelled => PushError::Cancelled,
            source => PushError::Pack { name: self.snapshot.streams[outgoing.stream].name.into(), source },
        })?;
        let blob = packed.blob;
        let is_known = outgoing.remembered.is_some_and(|remembered| remembered.digest() == blob.digest());
        let mut way = if is_known { None } else { self.without_bytes(&blob).await? };
        // An equal blob may be on its way from another place of this snapshot. If that fails, the push does.
        if way.is_none() && !self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(blob.digest()) {
            way = Some(Way::Present);
        }
        let Some(way) = way else {
            // Raw bytes that were reported. A blob that is sent again does not take them back.
            let reported = AtomicU64::new(0);
            let report = |sent: u64| {
                let now = u128::from(outgoing.raw) * u128::from(sent) / u128::from(blob.size().max(1));
                let now = u64::try_from(now).unwrap_or(outgoing.raw).min(outgoing.raw);
                let before = reported.fetch_max(now, Ordering::Relaxed);
                self.tracker.advance(now.saturating_sub(before));
            };
            let uploaded = self.repository.upload(blob.digest(), &packed.bytes, report).await;
            uploaded.map_err(|source| self.failed(blob.digest(), source))?;
            self.count(Way::Sent, blob.size());
            self.tracker.advance(outgoing.raw - reported.into_inner());
            return Ok(blob);
        };
        self.count(way, blob.size());
        self.tracker.advance(outgoing.raw);
        Ok(blob)
    }

    /// Whether the registry gets a blob without being sent it.
    async fn without_bytes(&self, blob: &Blob) -> Result<Option<Way>, PushError> {
        let (digest, size) = (blob.digest(), blob.size());
        let failed = |source| self.failed(digest, source);
        if self.repository.has_blob(self.repository.repository(), digest, size).await.map_err(failed)? {
            return Ok(Some(Way::Present));
        }
        if self.repository.mount(self.mount_from, digest, size).await.map_err(failed)? {
            return Ok(Some(Way::Mounted));
        }
        Ok(None)
    }

    fn count(&self, way: Way, bytes: u64) {
        let index = match way {
            Way::Sent => 0,
            Way::Mounted => 1,
            Way::Present => 2,
        };
        self.counts[index].fetch_add(bytes, Ordering::Relaxed);
    }

    fn failed(&self, digest: Digest, source: RegistryError) -> PushError {
        PushError::Registry { what: format!("blob {digest}"), source }
    }
}
