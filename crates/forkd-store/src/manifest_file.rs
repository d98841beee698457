//! `manifest.json`: JSON to look at, sealed by its last field.
//!
//! ```text
//! {
//!   "format": "forkd snapshot",
//!   "version": 2,
//!   "parent": "…",                                           the digest of another manifest; null of a full snapshot
//!   "created_unix_ms": 1760000000000,
//!   "cpu": { "vendor": "AuthenticAMD", "features": ["avx2", …], "tsc_khz": 2400000 },
//!   "page_size": 4096,
//!   "memory_size": 536870912,                                the sum of the regions
//!   "regions": [{ "address": 0, "length": 536870912 }],
//!   "files": { "state.bin": { "size": …, "digest": "…" }, "memory.bin": { … }, "memory.map": { … } },
//!   "about": { … },                                          the owner's own words
//!   "disk_layers": [{ "digest": "…", "size": … }],           of all disks, one after another
//!   "digest": "…"                                            blake3 of every byte up to and including the ] above
//! }
//! ```
//!
//! The last field always has the same place, counted from the end, so it is compared before anything is decoded: a flipped
//! bit is told from a newer format, and JSON from an attacker is at least JSON that someone meant to write. The same digest
//! names the snapshot in its children's manifests.
//!
//! Nothing in it is of one host: neither the snapshot's name nor its parent's, nor those of its disk layers. These are in `local.json`
//! (`local.rs`), so the same snapshot has the same manifest under any name. Version 1 had them inside: `manifest_v1.rs`.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::layout::{Layout, PAGE_BYTES, Region};
use crate::local::Local;
use crate::manifest::{
    About, Content, Cpu, FileEntry, LayerEntry, MAX_MANIFEST, Manifest, ManifestError, SealedManifest,
    check_cpu, check_layer_count,
};
use crate::manifest_v1;
use crate::page_map::PageMap;
use crate::state::{MAX_STATE, StateHeader};
use crate::tag::Tag;

const FORMAT: &str = "forkd snapshot";
const VERSION: u32 = 2;

/// What stands before and behind the digest at the end of the file.
const SEAL: (&[u8], &[u8]) = (b",\n  \"digest\": \"", b"\"\n}\n");
/// What the JSON ends with where the seal is not yet on it.
const CLOSE: &[u8] = b"\n}";
const DIGITS: usize = 2 * Digest::LENGTH;

/// The fields as they stand in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    version: u32,
    parent: Option<Digest>,
    created_unix_ms: u64,
    cpu: Cpu,
    page_size: u64,
    memory_size: u64,
    regions: Vec<Region>,
    files: Files,
    about: About,
    disk_layers: Vec<LayerEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    #[serde(rename = "state.bin")]
    state: FileEntry,
    #[serde(rename = "memory.bin")]
    memory: FileEntry,
    #[serde(rename = "memory.map")]
    map: FileEntry,
}

/// What every version has, and is looked at before the rest.
#[derive(Deserialize)]
struct Version {
    format: String,
    version: u32,
}

/// A manifest that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub sealed: SealedManifest,
    /// What version 1 says of its own host: its name, and what is in `local.json` now.
    pub local: Option<(Tag, Local)>,
}

impl Manifest {
    /// Writes the manifest and seals it. Only the newest version is written.
    pub fn seal(self) -> Result<(SealedManifest, Vec<u8>), ManifestError> {
        let fields = Fields::try_from(&self)?;
        check(&self)?;
        let mut file = serde_json::to_vec_pretty(&fields).map_err(ManifestError::Syntax)?;
        file.truncate(file.len() - CLOSE.len());
        let digest = Digest::of(&file);
        file.extend_from_slice(SEAL.0);
        file.extend_from_slice(digest.to_string().as_bytes());
        file.extend_from_slice(SEAL.1);
        check_size(&file)?;
        let sealed = SealedManifest { manifest: self, digest };
        Ok((sealed, file))
    }

    /// Checks a whole `manifest.json`.
    pub fn parse(file: &[u8]) -> Result<SealedManifest, ManifestError> {
        parse(file).map(|parsed| parsed.sealed)
    }
}

/// Checks a whole `manifest.json` of any version.
pub(crate) fn parse(file: &[u8]) -> Result<Parsed, ManifestError> {
    check_size(file)?;
    let (body, expected) = unseal(file).ok_or(ManifestError::Unsealed)?;
    let digest = Digest::of(body);
    if digest != expected {
        return Err(ManifestError::Digest { found: digest, expected });
    }
    let json = [body, CLOSE].concat();
    let version: Version = serde_json::from_slice(&json).map_err(ManifestError::Syntax)?;
    if version.format != FORMAT {
        return Err(ManifestError::Format {
            found: version.format.chars().take(80).collect(),
            expected: FORMAT,
        });
    }
    let (manifest, local) = match version.version {
        manifest_v1::VERSION => {
            let (manifest, tag, local) = manifest_v1::parse(&json)?;
            (manifest, Some((tag, local)))
        }
        VERSION => {
            let fields: Fields = serde_json::from_slice(&json).map_err(ManifestError::Syntax)?;
            (Manifest::try_from(fields)?, None)
        }
        found => return Err(ManifestError::Version { found }),
    };
    check(&manifest)?;
    Ok(Parsed { sealed: SealedManifest { manifest, digest }, local })
}

fn check_size(file: &[u8]) -> Result<(), ManifestError> {
    let found = file.len() as u64;
    if found > MAX_MANIFEST {
        return Err(ManifestError::TooLarge { found });
    }
    Ok(())
}

/// Splits a file into what is sealed and the digest.
fn unseal(file: &[u8]) -> Option<(&[u8], Digest)> {
    let rest = file.strip_suffix(SEAL.1)?;
    let (rest, digits) = rest.split_at_checked(rest.len().checked_sub(DIGITS)?)?;
    let body = rest.strip_suffix(SEAL.0)?;
    let digest = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some((body, digest))
}

/// Memory as both versions describe it.
pub(crate) fn layout(
    page_size: u64,
    memory_size: u64,
    regions: Vec<Region>,
) -> Result<Layout, ManifestError> {
    if page_size != PAGE_BYTES {
        return Err(ManifestError::PageSize { found: page_size, expected: PAGE_BYTES });
    }
    let layout = Layout::new(regions)?;
    if memory_size != layout.size() {
        return Err(ManifestError::MemorySize { found: memory_size, expected: layout.size() });
    }
    Ok(layout)
}

/// Checks what the types of the fields do not say.
fn check(manifest: &Manifest) -> Result<(), ManifestError> {
    check_cpu(&manifest.cpu)?;
    check_layer_count(manifest.disk_layers.len())?;
    let size = |file, found, valid, expected: String| match valid {
        true => Ok(()),
        false => Err(ManifestError::FileSize { file, found, expected }),
    };
    let (state, least) = (manifest.state.size, StateHeader::LENGTH as u64);
    let valid = (least..=MAX_STATE).contains(&state);
    size("state.bin", state, valid, format!("{least} to {MAX_STATE}"))?;
    let (found, memory) = (manifest.memory.size, manifest.layout.size());
    match manifest.content.map() {
        None => size("memory.bin", found, found == memory, format!("{memory}")),
        Some(map) => {
            let valid = found <= memory && found.is_multiple_of(PAGE_BYTES);
            size("memory.bin", found, valid, format!("whole pages and at most {memory}"))?;
            let (least, most) = (PageMap::HEADER as u64, PageMap::max_length(manifest.layout.pages()));
            let valid = (least..=most).contains(&map.size);
            size("memory.map", map.size, valid, format!("{least} to {most}"))
        }
    }
}

impl TryFrom<Fields> for Manifest {
    type Error = ManifestError;

    fn try_from(fields: Fields) -> Result<Manifest, ManifestError> {
        Ok(Manifest {
            parent: fields.parent,
            created_unix_ms: fields.created_unix_ms,
            cpu: fields.cpu,
            layout: layout(fields.page_size, fields.memory_size, fields.regions)?,
            about: fields.about,
            disk_layers: fields.disk_layers,
            state: fields.files.state,
            memory: fields.files.memory,
            content: Content::Framed { map: fields.files.map },
        })
    }
}

impl TryFrom<&Manifest> for Fields {
    type Error = ManifestError;

    fn try_from(manifest: &Manifest) -> Result<Fields, ManifestError> {
        let Content::Framed { map } = manifest.content else {
            return Err(ManifestError::OldContent);
        };
        Ok(Fields {
            format: FORMAT.into(),
            version: VERSION,
            parent: manifest.parent,
            created_unix_ms: manifest.created_unix_ms,
            cpu: manifest.cpu.clone(),
            page_size: PAGE_BYTES,
            memory_size: manifest.layout.size(),
            regions: manifest.layout.regions().to_vec(),
            files: Files { state: manifest.state, memory: manifest.memory, map },
            about: manifest.about.clone(),
            disk_layers: manifest.disk_layers.clone(),
        })
    }
}

#[cfg(test)]
mod tests;
