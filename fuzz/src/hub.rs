//! Snapshots in archives: what a receiver reads before it trusts anything, and the bytes of its streams.

use std::io::{self, Cursor};

use forkd_hub::layout::Layout;
use forkd_hub::{ByteSink, Silent, first_variant};
use forkd_image::digest::Digest;
use serde_json::{Value, json};

/// Streams larger than this are not fetched.
const LIMIT: u64 = 8 << 20;

/// Any archive is a snapshot or is refused. Returns how many bytes its streams have if all of them came.
pub fn receive(archive: &[u8]) -> Option<u64> {
    let directory = tempfile::tempdir().expect("a directory");
    let layout = Layout::unpack(Cursor::new(archive), directory.path(), LIMIT, &Silent).ok()?;
    let artifact = layout.open(&first_variant).ok()?;
    if artifact.raw_size() > LIMIT {
        return None;
    }
    for stream in artifact.streams() {
        let sink = Bounded(stream.table.size());
        layout.fetch(stream, &|_| false, &sink, &Silent).ok()?;
    }
    drop(layout);
    assert_eq!(std::fs::read_dir(directory.path()).expect("a list").count(), 0);
    Some(artifact.raw_size())
}

/// Nothing is written beyond the end of a stream.
struct Bounded(u64);

impl ByteSink for Bounded {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        assert!(offset + bytes.len() as u64 <= self.0);
        Ok(())
    }
}

const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";

/// An archive with this config and these blobs, and a manifest and an index that fit them.
pub fn sealed(config: &[u8], blobs: &[&[u8]]) -> Vec<u8> {
    archive(&manifest(config), MANIFEST_TYPE, &[blobs, &[config]].concat())
}

/// An archive whose tag names this document, as an index, and that has these blobs.
pub fn named(document: &[u8], blobs: &[&[u8]]) -> Vec<u8> {
    archive(document, INDEX_TYPE, blobs)
}

fn described(media_type: &str, bytes: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": Digest::of(bytes).to_string(), "size": bytes.len()})
}

/// The manifest of a config.
pub fn manifest(config: &[u8]) -> Vec<u8> {
    // The layers are what the config says, whatever that is.
    let parsed: Value = serde_json::from_slice(config).unwrap_or_default();
    let mut layers: Vec<Value> = Vec::new();
    for stream in parsed["streams"].as_array().into_iter().flatten() {
        for blob in stream["table"]["blobs"].as_array().into_iter().flatten() {
            let layer = json!({"mediaType": stream["role"], "digest": blob["digest"], "size": blob["size"]});
            if !layers.iter().any(|other| other["digest"] == layer["digest"]) {
                layers.push(layer);
            }
        }
    }
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": forkd_hub::ARTIFACT_TYPE,
        "config": described(forkd_hub::CONFIG_TYPE, config),
        "layers": layers,
    });
    manifest.to_string().into_bytes()
}

/// An index of two manifests, the first of another kind.
pub fn index(manifest: &[u8]) -> Vec<u8> {
    let mut variant = described(MANIFEST_TYPE, manifest);
    variant["artifactType"] = forkd_hub::ARTIFACT_TYPE.into();
    variant["annotations"] = json!({"dev.forkd.variant": "v3"});
    let mut other = described(MANIFEST_TYPE, b"another artifact");
    other["artifactType"] = "application/vnd.example".into();
    let index = json!({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [other, variant]});
    index.to_string().into_bytes()
}

fn archive(document: &[u8], media_type: &str, blobs: &[&[u8]]) -> Vec<u8> {
    let index = json!({"schemaVersion": 2, "manifests": [described(media_type, document)]}).to_string();
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |path: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, path, bytes).expect("memory");
    };
    add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
    let others = blobs.iter().copied().filter(|blob| *blob != document);
    for blob in others.chain([document]) {
        add(&format!("blobs/{}", Digest::of(blob).to_string().replace(':', "/")), blob);
    }
    add("index.json", index.as_bytes());
    archive.into_inner().expect("memory")
}

/// A config, and the blob that it names: one stream of a few bytes.
pub fn snapshot() -> (Vec<u8>, Vec<u8>) {
    use forkd_hub::{Annotations, Outgoing, Role, Snapshot, layout};
    let source = b"what a guest had in its memory".to_vec();
    let stream =
        Outgoing { role: Role::Memory, name: "memory", source: &source, known: None, remembered: None };
    let about = serde_json::from_value(json!({"version": 1, "name": "seed"})).expect("an object");
    let mut archive = Vec::new();
    let snapshot = Snapshot { streams: &[stream], about: &about, annotations: &Annotations::new() };
    layout::write(&mut archive, snapshot, None, &Silent).expect("memory");
    let mut blobs = Vec::new();
    for entry in tar::Archive::new(Cursor::new(archive)).entries().expect("a tar") {
        let mut bytes = Vec::new();
        io::copy(&mut entry.expect("an entry"), &mut bytes).expect("memory");
        blobs.push(bytes);
    }
    let is_config = |bytes: &Vec<u8>| bytes.windows(11).any(|word| word == b"blob_frames");
    let config = blobs.iter().find(|bytes| is_config(bytes)).expect("a config").clone();
    let named: Value = serde_json::from_slice(&config).expect("JSON");
    let digest = named["streams"][0]["table"]["blobs"][0]["digest"].as_str().expect("a blob").to_owned();
    let blob = blobs.into_iter().find(|bytes| Digest::of(bytes).to_string() == digest).expect("the blob");
    (config, blob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::keep;

    #[test]
    fn the_seeds_are_received() {
        let (config, blob) = snapshot();
        keep("hub_config", "small", &config);
        let archive = sealed(&config, &[&blob]);
        keep("hub_layout", "small", &archive);
        assert_eq!(receive(&archive), Some(30));
        let manifest = manifest(&config);
        let index = index(&manifest);
        for (name, document) in [("manifest", &manifest), ("variants", &index)] {
            keep("hub_index", name, document);
            assert_eq!(receive(&named(document, &[&blob, &config, &manifest])), Some(30), "{name}");
        }
        let signatures = include_bytes!("../seeds/hub_signatures/cosign");
        assert_eq!(forkd_hub::trust::listed_signatures(signatures).unwrap().len(), 1);
    }
}
