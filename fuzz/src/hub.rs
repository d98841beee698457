//! Snapshots in archives: what a receiver reads before it trusts anything, and the bytes of its streams. Also prefetch lists, and
//! answers of registries.

use std::io::{self, Cursor};
use std::time::SystemTime;

use forkd_hub::layout::Layout;
use forkd_hub::registry::answers::{self, Challenge};
use forkd_hub::{ByteSink, Silent, first_variant};
use forkd_image::digest::Digest;
use forkd_proto::page_runs::{MAX_PAGES, MAX_RUNS};
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

/// Any bytes are a prefetch list within its limits, with one encoding, or are refused. Returns the number of its pages.
pub fn first_pages(bytes: &[u8]) -> Option<u64> {
    let list = forkd_engine::received_prefetch(bytes)?;
    let parts = [&list.written, &list.touched, &list.fresh];
    for runs in parts {
        let mut before: Option<u64> = None;
        for run in runs.runs() {
            assert!(run.start < run.end && before.is_none_or(|end| end < run.start));
            before = Some(run.end);
        }
        assert_eq!(before.unwrap_or(0), runs.end());
        assert!(runs.pages() <= MAX_PAGES && runs.runs().count() <= MAX_RUNS);
    }
    let again = serde_json::to_vec(&list).expect("numbers");
    assert_eq!(forkd_engine::received_prefetch(&again).as_ref(), Some(&list));
    Some(parts.iter().map(|runs| runs.pages()).sum())
}

/// Any bytes are answers of a registry or are refused. Returns which parsers have accepted them: tags, token, challenge, Retry-After,
/// Content-Range.
pub fn read_answers(bytes: &[u8]) -> [bool; 5] {
    let tags = answers::tags_of(bytes);
    for tag in tags.iter().flatten() {
        assert!(!tag.is_empty() && tag.len() <= 128 && !tag.starts_with('.'));
        assert!(!tag.contains(['/', '\\', '%', '?', '#']));
    }
    let token = answers::token(bytes);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return [tags.is_ok(), token.is_some(), false, false, false];
    };
    let challenge = Challenge::parse(text);
    if let Some(url) = challenge.as_ref().and_then(|challenge| challenge.address("team/child", true, Some("base"))) {
        // Whatever the challenge contains, the token is for these two repositories.
        let scopes = "scope=repository%3Ateam%2Fchild%3Apull%2Cpush&scope=repository%3Abase%3Apull";
        assert!(url.query().is_some_and(|query| query.ends_with(scopes)));
    }
    let wait = answers::parse_retry_after(text, SystemTime::UNIX_EPOCH);
    let range = answers::first_byte(text);
    [tags.is_ok(), token.is_some(), challenge.is_some(), wait.is_some(), range.is_some()]
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
    use forkd_hub::About;
    use forkd_hub::trust::{Policy, PublicKey, Requirement, Signature, SignatureError, SigningKey};

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

    #[test]
    fn the_seeds_of_small_parsers_are_read() {
        assert_eq!(first_pages(include_bytes!("../seeds/hub_prefetch/list")), Some(5 + 2 + 512));
        let read = |seed: &[u8]| read_answers(seed);
        assert_eq!(read(include_bytes!("../seeds/hub_headers/tags")), [true, false, false, false, false]);
        assert_eq!(read(include_bytes!("../seeds/hub_headers/token")), [true, true, false, false, false]);
        assert_eq!(
            read(include_bytes!("../seeds/hub_headers/challenge")),
            [false, false, true, false, false]
        );
        assert_eq!(read(include_bytes!("../seeds/hub_headers/seconds")), [false, false, false, true, false]);
        assert_eq!(read(include_bytes!("../seeds/hub_headers/date")), [false, false, false, true, false]);
        assert_eq!(read(include_bytes!("../seeds/hub_headers/range")), [false, false, false, false, true]);
    }

    #[test]
    fn the_seeds_of_a_chain_and_of_signatures_are_read() {
        let about: About = serde_json::from_slice(include_bytes!("../seeds/hub_itinerary/chain")).unwrap();
        forkd_engine::snapshot_digest(&about).unwrap();
        let policy = Policy::parse(include_str!("../seeds/hub_policy/rules")).unwrap();
        let key = SigningKey::from_pem(include_str!("../seeds/hub_policy/signing-key")).unwrap().public();
        let public = PublicKey::from_pem(include_str!("../seeds/hub_policy/public-key")).unwrap();
        assert_eq!(public, key);
        let Requirement::Signed { keys, .. } = policy.check("registry.example/team/app") else {
            panic!("a rule")
        };
        assert_eq!(keys, [key.clone()]);
        let (payload, signature) =
            include_str!("../seeds/hub_signature/another-key").rsplit_once('\n').unwrap();
        let parse = |key: PublicKey| {
            Signature::parse(Digest::of(b"a manifest"), payload.to_owned(), signature.to_owned(), key)
        };
        parse(key).unwrap();
        let refused = parse(SigningKey::generate().unwrap().public()).unwrap_err();
        assert!(matches!(refused, SignatureError::NotSigned { .. }), "{refused}");
    }
}
