//! `manifest.json` as version 1 had it. It is read for good, and no longer written.
//!
//! What is of one host stood in it with the rest: its own name and its parent's, the names of its disk layers, and all that its owner
//! wanted to know again.

use serde::Deserialize;

use crate::digest::Digest;
use crate::layout::Region;
use crate::local::Local;
use crate::manifest::{About, Content, Cpu, FileEntry, LayerEntry, Manifest, ManifestError};
use crate::manifest_file::layout;
use crate::tag::Tag;

pub(crate) const VERSION: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(rename = "format")]
    _format: String,
    #[serde(rename = "version")]
    _version: u32,
    tag: Tag,
    kind: Kind,
    parent: Option<ParentFields>,
    created_unix_ms: u64,
    cpu_features: Vec<String>,
    page_size: u64,
    memory_size: u64,
    regions: Vec<Region>,
    files: Files,
    #[serde(default)]
    about: About,
    disk_layers: Vec<LayerFields>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Full,
    Diff,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ParentFields {
    tag: Tag,
    digest: Digest,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LayerFields {
    id: Tag,
    digest: Digest,
    size: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Files {
    #[serde(rename = "state.bin")]
    state: FileEntry,
    #[serde(rename = "memory.bin")]
    memory: FileEntry,
    #[serde(rename = "memory.map", default)]
    map: Option<FileEntry>,
}

/// Decodes the JSON of a manifest; sizes and counts are checked by the caller.
pub(crate) fn parse(json: &[u8]) -> Result<(Manifest, Tag, Local), ManifestError> {
    let fields: Fields = serde_json::from_slice(json).map_err(ManifestError::Syntax)?;
    let wrong = |kind, what, expected| Err(ManifestError::Kind { kind, what, expected });
    let (content, parent) = match (fields.kind, fields.parent, fields.files.map) {
        (Kind::Full, None, None) => (Content::Sparse, None),
        (Kind::Diff, Some(parent), Some(map)) => (Content::Packed { map }, Some(parent)),
        (Kind::Full, Some(_), _) => return wrong("full", "a parent", "none"),
        (Kind::Full, None, Some(_)) => return wrong("full", "a memory.map", "none"),
        (Kind::Diff, None, _) => return wrong("diff", "no parent", "one"),
        (Kind::Diff, Some(_), None) => return wrong("diff", "no memory.map", "one"),
    };
    let (parent_tag, parent) = parent.map(|parent| (parent.tag, parent.digest)).unzip();
    let split = |layer: LayerFields| (layer.id, LayerEntry { digest: layer.digest, size: layer.size });
    let (layers, disk_layers) = fields.disk_layers.into_iter().map(split).unzip();
    let manifest = Manifest {
        parent,
        created_unix_ms: fields.created_unix_ms,
        cpu: Cpu { vendor: None, features: fields.cpu_features, tsc_khz: None },
        layout: layout(fields.page_size, fields.memory_size, fields.regions)?,
        about: About::new(),
        disk_layers,
        state: fields.files.state,
        memory: fields.files.memory,
        content,
    };
    Ok((manifest, fields.tag, Local { parent: parent_tag, layers, about: fields.about }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest_file;
    use crate::testing::{reseal, tag};
    use std::fs;
    use std::path::Path;

    fn file(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("records").join(name)).unwrap()
    }

    #[test]
    fn its_manifests_are_read() {
        let parsed = manifest_file::parse(&file("manifest-1.json")).unwrap();
        let (name, local) = parsed.local.unwrap();
        assert_eq!((name, local.parent), (tag("base"), Some(tag("parent"))));
        assert_eq!(local.layers, [tag("debian-12")]);
        assert_eq!(local.about["image"], "debian");
        let manifest = parsed.sealed.manifest;
        assert_eq!(manifest.parent, Some(Digest::of(b"parent")));
        assert_eq!(manifest.cpu.features, ["avx2", "sse4_2"]);
        assert_eq!(manifest.disk_layers, [LayerEntry { digest: Digest::of(b"disk"), size: 1 << 30 }]);
        assert!(matches!(manifest.content, Content::Packed { .. }));
        let full = manifest_file::parse(&file("snapshots-1/base/manifest.json")).unwrap();
        assert_eq!(full.sealed.manifest.content, Content::Sparse);
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let forged =
            |name, old, new| manifest_file::parse(&reseal(&file(name), old, new)).unwrap_err().to_string();
        let (full, diff) = ("snapshots-1/base/manifest.json", "manifest-1.json");
        assert_eq!(forged(full, "full", "diff"), "a diff snapshot with no parent, expected one");
        assert_eq!(forged(diff, "diff", "full"), "a full snapshot with a parent, expected none");
        assert_eq!(
            forged(full, "\"size\": 20480", "\"size\": 16384"),
            "memory.bin of 16384 bytes, expected 20480"
        );
        assert_eq!(forged(full, "\"tag\"", "\"more\": 1, \"tag\""), "not a manifest");
    }
}
