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
/// The longest name of a CPU's vendor, which has 12 characters in CPUID.
const MAX_VENDOR: usize = 12;

/// What a snapshot is, wherever it is. What only one host knows of it, its name first of all, is in [`Local`](crate::Local).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The digest of the parent's manifest, if this is a diff.
    pub parent: Option<Digest>,
    /// Milliseconds since 1970.
    pub created_unix_ms: u64,
    pub cpu: Cpu,
    pub layout: Layout,
    /// What the owner of the store wants to know again on every host. It means nothing here.
    pub about: About,
    /// Those of each disk from the base up, one disk after another. The state has how many are whose.
    pub disk_layers: Vec<LayerEntry>,
    /// `state.bin`
    pub state: FileEntry,
    /// `memory.bin`
    pub memory: FileEntry,
    pub content: Content,
}

/// A JSON object.
pub type About = serde_json::Map<String, serde_json::Value>;

/// What the guest may have seen of the CPU and will use again.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// As CPUID has it. Version 1 does not say.
    pub vendor: Option<String>,
    /// Sorted. The names are the VMM's.
    pub features: Vec<String>,
    /// The rate of the guest's TSC. Version 1 does not say.
    pub tsc_khz: Option<u32>,
}

/// What `memory.bin` holds, and how it is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// The pages that are not zero, or of a diff those that differ from the parent's, one after another; `map` is `memory.map`, which has
    /// the digests of the frames (`frame.rs`).
    Framed { map: FileEntry },
    /// A diff of version 1: the same without frames, with a digest of the whole (`image_digest.rs`).
    Packed { map: FileEntry },
    /// A full snapshot of version 1: all pages, at their places; zero pages are holes. The digest is one of the whole, too.
    Sparse,
}

impl Content {
    /// `memory.map`, which all have but a full snapshot of version 1.
    pub fn map(&self) -> Option<FileEntry> {
        match self {
            Content::Framed { map } | Content::Packed { map } => Some(*map),
            Content::Sparse => None,
        }
    }
}

/// A snapshot of a store, named so that no other can take its place.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// The contents of a layer of one of the VM's disks. The file is somewhere else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerEntry {
    /// Of a sparse image: see `image_digest.rs`.
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
    #[error("format version {found}, expected 1 or 2")]
    Version { found: u32 },
    #[error("pages of {found} bytes, expected {expected}")]
    PageSize { found: u64, expected: u64 },
    #[error("invalid memory layout")]
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
    #[error("memory of an older format, which is read and no longer written")]
    OldContent,
    #[error("the CPU vendor is not 1 to {MAX_VENDOR} printable characters")]
    Vendor,
}

/// Checks what a guest needs of the CPU: names are few, short and printable, and features are sorted, each once.
pub(crate) fn check_cpu(cpu: &Cpu) -> Result<(), ManifestError> {
    let is_name = |vendor: &String| {
        (1..=MAX_VENDOR).contains(&vendor.len()) && vendor.bytes().all(|byte| matches!(byte, b' '..=b'~'))
    };
    if cpu.vendor.as_ref().is_some_and(|vendor| !is_name(vendor)) {
        return Err(ManifestError::Vendor);
    }
    let features = &cpu.features;
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

pub(crate) fn check_layer_count(found: usize) -> Result<(), ManifestError> {
    if found > MAX_LAYERS {
        return Err(ManifestError::LayerCount { found });
    }
    Ok(())
}
