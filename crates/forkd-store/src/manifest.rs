//! A snapshot's manifest: what the snapshot is, what it needs, and the sizes and digests of its other files.
//!
//! The types here are what the rest of the crate works with. How they are written to `manifest.json` is in
//! `manifest_file.rs`, which is also where a file that was read is checked.

use crate::digest::Digest;
use crate::layout::{Layout, LayoutError};
use crate::tag::Tag;

/// The largest `manifest.json`.
pub(crate) const MAX_MANIFEST: u64 = 1 << 20;
/// The most CPU features and the most disk layers: both fit the largest manifest.
const MAX_FEATURES: usize = 4096;
const MAX_LAYERS: usize = 1024;
/// The longest name of a CPU feature.
const MAX_FEATURE_NAME: usize = 64;

/// What a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    pub tag: Tag,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    /// What the guest may have seen of the CPU and will use again, sorted. The names are the VMM's.
    pub cpu_features: Vec<String>,
    pub layout: Layout,
    /// What the owner of the store wants to know again. It means nothing here.
    pub about: About,
    /// Those of each disk from the base up, one disk after another. The state has how many are whose.
    pub disk_layers: Vec<DiskLayer>,
    /// `state.bin`
    pub state: FileEntry,
    /// `memory.bin`. The digest is that of an image: see `image_digest.rs`.
    pub memory: FileEntry,
    pub content: Content,
}

/// A JSON object.
pub type About = serde_json::Map<String, serde_json::Value>;

/// What `memory.bin` holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// All pages, at their places; zero pages are holes.
    Full,
    /// Only the pages that differ from the parent's, one after another; `map` is `memory.map`.
    Diff { parent: Link, map: FileEntry },
}

/// A snapshot named so that no other can take its place.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    pub tag: Tag,
    /// The digest in the snapshot's manifest.
    pub digest: Digest,
}

/// A file of the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Bytes.
    pub size: u64,
    pub digest: Digest,
}

/// A layer of one of the VM's disks. The store keeps the reference; the layer is somewhere else.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskLayer {
    /// Has the syntax of a tag.
    pub id: Tag,
    pub digest: Digest,
    /// Bytes.
    pub size: u64,
}

/// A manifest together with the digest that it is known by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedManifest {
    pub manifest: Manifest,
    pub digest: Digest,
}

impl SealedManifest {
    /// How a child names this snapshot.
    pub fn link(&self) -> Link {
        Link { tag: self.manifest.tag.clone(), digest: self.digest }
    }
}

impl Manifest {
    /// The link to the parent, if this is a diff.
    pub fn parent(&self) -> Option<&Link> {
        match &self.content {
            Content::Full => None,
            Content::Diff { parent, .. } => Some(parent),
        }
    }
}

/// The bytes are not a manifest that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{found} bytes, expected at most {MAX_MANIFEST}")]
    TooLarge { found: u64 },
    #[error("truncated: it does not end with the digest of what is before")]
    Unsealed,
    #[error(
        "damaged: the blake3 digest of what is before the last field is {found}, that field says {expected}"
    )]
    Digest { found: Digest, expected: Digest },
    #[error("not a manifest")]
    Syntax(#[source] serde_json::Error),
    #[error("the format is {found:?}, expected {expected:?}")]
    Format { found: String, expected: &'static str },
    #[error("format version {found}, expected {expected}")]
    Version { found: u32, expected: u32 },
    #[error("pages of {found} bytes, expected {expected}")]
    PageSize { found: u64, expected: u64 },
    #[error("memory that cannot be")]
    Layout(#[from] LayoutError),
    #[error("{found} bytes of memory, but the regions have {expected}")]
    MemorySize { found: u64, expected: u64 },
    #[error("a {kind} snapshot with {what}, expected {expected}")]
    Kind { kind: &'static str, what: &'static str, expected: &'static str },
    #[error("{file} of {found} bytes, expected {expected}")]
    FileSize { file: &'static str, found: u64, expected: String },
    #[error("{found} CPU features, expected at most {MAX_FEATURES}")]
    FeatureCount { found: usize },
    #[error("CPU feature {index} is not 1 to {MAX_FEATURE_NAME} printable characters without spaces")]
    FeatureName { index: usize },
    #[error("CPU feature {index} does not sort behind the one before it")]
    FeatureOrder { index: usize },
    #[error("{found} disk layers, expected at most {MAX_LAYERS}")]
    LayerCount { found: usize },
}

/// Checks names of CPU features: few, short, printable, sorted, each once.
pub(crate) fn check_features(features: &[String]) -> Result<(), ManifestError> {
    if features.len() > MAX_FEATURES {
        return Err(ManifestError::FeatureCount { found: features.len() });
    }
    for (index, feature) in features.iter().enumerate() {
        let printable = feature.bytes().all(|byte| byte.is_ascii_graphic());
        if !printable || !(1..=MAX_FEATURE_NAME).contains(&feature.len()) {
            return Err(ManifestError::FeatureName { index });
        }
        if index > 0 && features[index - 1] >= *feature {
            return Err(ManifestError::FeatureOrder { index });
        }
    }
    Ok(())
}

pub(crate) fn check_layers(layers: &[DiskLayer]) -> Result<(), ManifestError> {
    if layers.len() > MAX_LAYERS {
        return Err(ManifestError::LayerCount { found: layers.len() });
    }
    Ok(())
}
