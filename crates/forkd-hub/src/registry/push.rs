//! Pushing a snapshot: only what the registry does not have, and the tag last.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use forkd_source::digest::Digest;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::{RegistryError, Repository};
use crate::artifact::Variant;
use crate::config::Stream;
use crate::fetch::TRANSFERS;
use crate::manifest::{self, Descriptor, INDEX_TYPE, Index, MANIFEST_TYPE, ManifestError};
use crate::outgoing::{OutgoingBlob, OutgoingError, Prepared, Snapshot};
use crate::pack::PackError;
use crate::progress::{Progress, Tracker};
use crate::role::ARTIFACT_TYPE;
use crate::table::Blob;
use crate::workers::Workers;

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
    #[error(transparent)]
    Index(#[from] ManifestError),
    #[error("cancelled")]
    Cancelled,
}

/// How a snapshot is pushed.
#[derive(Debug, Clone, Default)]
pub struct PushOptions {
    /// Repositories of the same registry that may have some of the blobs, for instance the parent's.
    pub mount_from: Vec<String>,
    /// Stores the manifest under its digest only: the tag is then set to an index of several variants.
    pub without_tag: bool,
}

/// What a push did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pushed {
    /// Of the manifest.
    pub digest: Digest,
    /// Bytes of the manifest.
    pub size: u64,
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
        if !options.without_tag {
            let stored = self.put_manifest(tag, MANIFEST_TYPE, &documents.manifest).await;
            stored.map_err(failed("the tag"))?;
        }
        let [sent, mounted, present] = push.counts.map(AtomicU64::into_inner);
        Ok(Pushed {
            digest: documents.manifest_digest,
            size: documents.manifest.len() as u64,
            streams: documents.streams,
            sent,
            mounted,
            present,
        })
    }

    /// Sets the tag to an index of manifests that were pushed to this repository. Returns the index's digest.
    pub fn push_index(&self, variants: &[Variant], progress: &dyn Progress) -> Result<Digest, PushError> {
        let tag = self.push_tag()?;
        let bytes = index_of(variants)?;
        self.block_on(progress, PushError::Cancelled, |repository| async move {
            let stored = repository.put_manifest(tag, INDEX_TYPE, &bytes).await;
            stored.map_err(|source| PushError::Registry { what: "the index".into(), source })?;
            Ok(Digest::of(&bytes))
        })
    }

    fn push_tag(&self) -> Result<&str, PushError> {
        match (self.reference.digest(), self.reference.tag()) {
            (Some(_), _) => Err(PushError::ToDigest { reference: self.reference() }),
            (None, tag) => Ok(tag.unwrap_or("latest")),
        }
    }
}

/// Whether this is a name that can be part of an address as it is.
fn is_repository(name: &str) -> bool {
    let is_part = |part: &str| {
        part.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte))
    };
    name.len() <= 255 && name.split('/').all(is_part)
}

/// An index of variants: descriptors without a platform, told from each other by their annotations.
fn index_of(variants: &[Variant]) -> Result<Vec<u8>, ManifestError> {
    let entry = |variant: &Variant| Descriptor {
        artifact_type: Some(ARTIFACT_TYPE.into()),
        annotations: variant.annotations.clone(),
        ..Descriptor::new(MANIFEST_TYPE, variant.digest, variant.size)
    };
    manifest::encode(&Index {
        schema_version: 2,
        media_type: INDEX_TYPE.into(),
        artifact_type: Some(ARTIFACT_TYPE.into()),
        manifests: variants.iter().map(entry).collect(),
    })
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
