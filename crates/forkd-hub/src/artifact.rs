//! An artifact that was opened: everything about it is known and checked, and nothing of its streams was fetched.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use forkd_source::digest::Digest;

use crate::config::{About, Config, ConfigError, MAX_CONFIG, Stream};
use crate::manifest::{
    Annotations, Descriptor, Document, INDEX_TYPE, MANIFEST_TYPE, Manifest, ManifestError,
};
use crate::registry::RegistryError;
use crate::role::{ARTIFACT_TYPE, Role};

/// Variants that one index may list.
pub(crate) const MAX_VARIANTS: usize = 256;
/// The annotation of an index's entry that has the variant's name.
pub(crate) const VARIANT: &str = "dev.forkd.variant";

/// A snapshot that can be fetched.
#[derive(Debug, Clone, PartialEq)]
pub struct Artifact {
    manifest: Digest,
    root: Digest,
    annotations: Annotations,
    about: About,
    streams: Vec<Stream>,
}

/// One of several manifests under one tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    /// Of the manifest.
    pub digest: Digest,
    /// Bytes of the manifest.
    pub size: u64,
    pub annotations: Annotations,
}

impl Variant {
    /// What it was called when it was pushed.
    pub fn name(&self) -> Option<&str> {
        self.annotations.get(VARIANT).map(String::as_str)
    }
}

/// Chooses one of the variants that an index lists, by its place, or says why none of them does.
pub type Selector<'a> = &'a dyn Fn(&[Variant]) -> Result<usize, String>;

/// Takes the first variant.
pub fn first_variant(variants: &[Variant]) -> Result<usize, String> {
    if variants.is_empty() { Err("the index lists no variants".into()) } else { Ok(0) }
}

/// An artifact was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read the {what}")]
    Read { what: &'static str, source: SourceError },
    #[error("the {what} has the digest {found}, expected {expected}")]
    Digest { what: &'static str, found: Digest, expected: Digest },
    #[error("the {what} has {found} bytes, expected {expected}")]
    Size { what: &'static str, found: u64, expected: u64 },
    #[error("the index lists {count} manifests, expected at most {MAX_VARIANTS}")]
    TooManyVariants { count: usize },
    #[error("the index lists no forkd snapshot: found {}", listed(.types))]
    NoSnapshot { types: Vec<String> },
    #[error("none of the {count} variants of the snapshot fits this host: {reason}")]
    NoVariant { count: usize, reason: String },
    #[error("indexes are nested too deep: expected at most two")]
    TooDeep,
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cancelled")]
    Cancelled,
}

fn listed(types: &[String]) -> String {
    if types.is_empty() { "nothing".into() } else { types.join(", ") }
}

/// Bytes of a blob could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("the file does not have blob {digest}")]
    Missing { digest: Digest },
    #[error("blob {digest} ends early")]
    Truncated { digest: Digest },
    #[error("cannot read blob {digest}")]
    File { digest: Digest, source: std::io::Error },
}

/// Where blobs are: a registry, or a layout that was unpacked.
pub(crate) trait BlobSource {
    type Reader: BlobReader;
    /// The bytes of a manifest with this digest; at most `limit`.
    async fn manifest(&self, digest: Digest, limit: u64) -> Result<Bytes, SourceError>;
    /// Begins to read a part of a blob of `size` bytes.
    async fn read(&self, digest: Digest, size: u64, range: Range<u64>) -> Result<Self::Reader, SourceError>;
    /// Waits before a read is tried again, or says that it is of no use. `attempts` have failed since the last byte came.
    async fn wait(&self, error: SourceError, attempts: u32) -> Result<(), SourceError>;
}

pub(crate) trait BlobReader {
    /// The next bytes of the part, none at its end.
    async fn next(&mut self) -> Result<Option<Bytes>, SourceError>;
}

impl Artifact {
    /// Of the manifest. It names this artifact and no other.
    pub fn digest(&self) -> Digest {
        self.manifest
    }

    /// Of what the reference named: the manifest, or the index that lists it. It stands for everything below it, so this is the
    /// digest to sign and to verify.
    pub fn root_digest(&self) -> Digest {
        self.root
    }

    pub fn annotations(&self) -> &Annotations {
        &self.annotations
    }

    /// What the sender said about the snapshot. Nothing in it was checked.
    pub fn about(&self) -> &About {
        &self.about
    }

    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    pub fn stream(&self, role: Role, name: &str) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.role == role && stream.name == name)
    }

    /// Raw bytes of all streams.
    pub fn raw_size(&self) -> u64 {
        self.streams.iter().map(|stream| stream.table.size()).sum()
    }

    /// Compressed bytes of all blobs, each counted once.
    pub fn compressed_size(&self) -> u64 {
        let blobs = self.streams.iter().flat_map(|stream| stream.table.blobs());
        blobs.map(|blob| (blob.digest(), blob.size())).collect::<BTreeMap<_, _>>().into_values().sum()
    }
}

/// Follows a manifest or an index, which the caller has and has checked, to an artifact.
pub(crate) async fn open(
    source: &impl BlobSource,
    document: &[u8],
    select: Selector<'_>,
) -> Result<Artifact, OpenError> {
    let root = Digest::of(document);
    let mut digest = root;
    let mut bytes = Bytes::copy_from_slice(document);
    for _ in 0..3 {
        match Document::parse(&bytes)? {
            Document::Manifest(manifest) => return finish(source, manifest, digest, root).await,
            Document::Index(index) => {
                let chosen = choose(&index.manifests, select)?;
                let read = source.manifest(chosen.digest, chosen.size).await;
                bytes = read.map_err(|source| OpenError::Read { what: "manifest", source })?;
                check("manifest", &bytes, chosen)?;
                digest = chosen.digest;
            }
        }
    }
    Err(OpenError::TooDeep)
}

fn choose<'a>(listed: &'a [Descriptor], select: Selector<'_>) -> Result<&'a Descriptor, OpenError> {
    if listed.len() > MAX_VARIANTS {
        return Err(OpenError::TooManyVariants { count: listed.len() });
    }
    // A layout lists what a tag names, which may be an index.
    if let [only] = listed
        && only.media_type == INDEX_TYPE
    {
        return Ok(only);
    }
    let is_snapshot = |descriptor: &&Descriptor| {
        descriptor.media_type == MANIFEST_TYPE
            && descriptor.artifact_type.as_deref().is_none_or(|artifact| artifact == ARTIFACT_TYPE)
    };
    let snapshots: Vec<&Descriptor> = listed.iter().filter(is_snapshot).collect();
    if snapshots.is_empty() {
        let shown = |descriptor: &Descriptor| {
            let shown = descriptor.artifact_type.as_ref().unwrap_or(&descriptor.media_type);
            shown.chars().take(120).collect()
        };
        return Err(OpenError::NoSnapshot { types: listed.iter().take(8).map(shown).collect() });
    }
    let variant = |descriptor: &&Descriptor| Variant {
        digest: descriptor.digest,
        size: descriptor.size,
        annotations: descriptor.annotations.clone(),
    };
    let variants: Vec<Variant> = snapshots.iter().map(variant).collect();
    let chosen = select(&variants).and_then(|chosen| {
        let missing = || format!("number {} is not there", chosen.saturating_add(1));
        snapshots.get(chosen).copied().ok_or_else(missing)
    });
    chosen.map_err(|reason| OpenError::NoVariant { count: variants.len(), reason })
}

async fn finish(
    source: &impl BlobSource,
    manifest: Manifest,
    digest: Digest,
    root: Digest,
) -> Result<Artifact, OpenError> {
    manifest.check_type()?;
    let bytes = small_blob(source, "config", &manifest.config, MAX_CONFIG).await?;
    let config = Config::parse(&bytes)?;
    manifest.check_layers(&config)?;
    Ok(Artifact {
        manifest: digest,
        root,
        annotations: manifest.annotations,
        about: config.about,
        streams: config.streams,
    })
}

/// Reads a blob whole and checks it.
pub(crate) async fn small_blob(
    source: &impl BlobSource,
    what: &'static str,
    blob: &Descriptor,
    limit: u64,
) -> Result<Bytes, OpenError> {
    if blob.size > limit {
        return Err(OpenError::Size { what, found: blob.size, expected: limit });
    }
    let mut attempts = 0;
    loop {
        match whole(source, blob).await {
            Ok(bytes) => {
                check(what, &bytes, blob)?;
                return Ok(bytes);
            }
            Err(error) => {
                attempts += 1;
                source.wait(error, attempts).await.map_err(|source| OpenError::Read { what, source })?;
            }
        }
    }
}

async fn whole(source: &impl BlobSource, blob: &Descriptor) -> Result<Bytes, SourceError> {
    let mut reader = source.read(blob.digest, blob.size, 0..blob.size).await?;
    let mut bytes = Vec::new();
    while let Some(more) = reader.next().await? {
        bytes.extend_from_slice(&more);
    }
    Ok(bytes.into())
}

fn check(what: &'static str, bytes: &[u8], expected: &Descriptor) -> Result<(), OpenError> {
    if bytes.len() as u64 != expected.size {
        return Err(OpenError::Size { what, found: bytes.len() as u64, expected: expected.size });
    }
    let found = Digest::of(bytes);
    if found != expected.digest {
        return Err(OpenError::Digest { what, found, expected: expected.digest });
    }
    Ok(())
}
