//! Whole images in one archive, taken apart after it was unpacked: what `docker save` writes (`manifest.json`), and OCI
//! layouts (`index.json`). Newer Dockers write both.

use std::fs::File;
use std::io;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::archive::Tree;
use crate::digest::Digest;
use crate::images::Config;
use crate::oci::{self, ConfigError, MAX_CONFIG};

#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    #[error("neither manifest.json nor index.json is in it")]
    NoManifest,
    #[error("{0} images, expected 1")]
    NotOne(usize),
    #[error("{0:?} is missing")]
    Missing(String),
    #[error("cannot parse {0:?}")]
    Json(String, #[source] serde_json::Error),
    #[error("{0:?} does not match its digest")]
    WrongDigest(String),
    #[error("cannot read {0:?}")]
    Read(String, #[source] io::Error),
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// An image in an archive.
pub(crate) struct Found {
    pub config: Config,
    /// Each with the digest of what is in it, unpacked.
    pub layers: Vec<(File, Digest)>,
}

/// Whether an archive that begins with this header is an image and not the root of a system.
pub(crate) fn is_layout(header: &[u8]) -> bool {
    let name = header.get(..100).unwrap_or(header);
    let name = name.split(|byte| *byte == 0).next().unwrap_or(name);
    let name = name.strip_prefix(b"./").unwrap_or(name);
    let first = name.split(|byte| *byte == b'/').next().unwrap_or(name);
    let is_digest = first.len() == 64 && first.iter().all(u8::is_ascii_hexdigit);
    is_digest
        || [&b"blobs"[..], b"oci-layout", b"index.json", b"manifest.json", b"repositories"].contains(&first)
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    layers: Vec<String>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: Digest,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

pub(crate) fn read(tree: &Tree) -> Result<Found, LayoutError> {
    let (config, layers) = match document::<Vec<DockerManifest>>(tree, "manifest.json")? {
        Some(mut manifests) if manifests.len() == 1 => {
            let manifest = manifests.remove(0);
            (content(tree, &manifest.config)?, manifest.layers)
        }
        Some(manifests) => return Err(LayoutError::NotOne(manifests.len())),
        None => {
            let index = document::<Index>(tree, "index.json")?.ok_or(LayoutError::NoManifest)?;
            let manifest = image_manifest(tree, index)?;
            let layers = manifest.layers.iter().map(|layer| blob_path(&layer.digest)).collect();
            (blob(tree, &manifest.config.digest)?, layers)
        }
    };
    let config = oci::parse(&config, layers.len())?;
    let open = |path: &String| match tree.open(path) {
        Ok(Some(file)) => Ok(file),
        Ok(None) => Err(LayoutError::Missing(shown(path))),
        Err(error) => Err(LayoutError::Read(shown(path), error)),
    };
    let files = layers.iter().map(open).collect::<Result<Vec<_>, _>>()?;
    Ok(Found { config: config.config, layers: files.into_iter().zip(config.layers).collect() })
}

/// Follows at most two indexes: the layout's own and one of platforms.
fn image_manifest(tree: &Tree, index: Index) -> Result<Manifest, LayoutError> {
    let mut index = index;
    for _ in 0..2 {
        let mut candidates = index.manifests;
        if candidates.len() > 1 {
            candidates.retain(|entry| {
                entry.platform.as_ref().is_some_and(|it| it.os == "linux" && it.architecture == "amd64")
            });
        }
        let [entry] = &candidates[..] else { return Err(LayoutError::NotOne(candidates.len())) };
        let bytes = blob(tree, &entry.digest)?;
        let parsed = |error| LayoutError::Json(blob_path(&entry.digest), error);
        if !entry.media_type.contains("index") && !entry.media_type.contains("manifest.list") {
            return serde_json::from_slice(&bytes).map_err(parsed);
        }
        index = serde_json::from_slice(&bytes).map_err(parsed)?;
    }
    Err(LayoutError::NoManifest)
}

fn blob_path(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn blob(tree: &Tree, digest: &Digest) -> Result<Vec<u8>, LayoutError> {
    let path = blob_path(digest);
    let bytes = content(tree, &path)?;
    if Digest::of(&bytes) == *digest { Ok(bytes) } else { Err(LayoutError::WrongDigest(path)) }
}

fn content(tree: &Tree, path: &str) -> Result<Vec<u8>, LayoutError> {
    let content = tree.read(path, MAX_CONFIG).map_err(|error| LayoutError::Read(shown(path), error))?;
    content.ok_or_else(|| LayoutError::Missing(shown(path)))
}

fn document<T: DeserializeOwned>(tree: &Tree, path: &str) -> Result<Option<T>, LayoutError> {
    let content = tree.read(path, MAX_CONFIG).map_err(|error| LayoutError::Read(path.into(), error))?;
    let Some(content) = content else { return Ok(None) };
    serde_json::from_slice(&content).map(Some).map_err(|error| LayoutError::Json(path.into(), error))
}

fn shown(path: &str) -> String {
    path.chars().take(200).collect()
}
