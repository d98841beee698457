//! OCI manifests and indexes, as far as snapshots and signatures use them.
//!
//! Fields that are not known are ignored, as the specification wants; addresses that a descriptor may name (`urls`) are not asked.

use std::collections::BTreeMap;

use forkd_source::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Stream};
use crate::role::{ARTIFACT_TYPE, CONFIG_TYPE};

pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
/// Bytes of the largest manifest: what registries take.
pub(crate) const MAX_MANIFEST: u64 = 4 << 20;

pub type Annotations = BTreeMap<String, String>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty", deserialize_with = "null_is_empty")]
    pub annotations: Annotations,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub schema_version: u32,
    pub media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty", deserialize_with = "null_is_empty")]
    pub annotations: Annotations,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub schema_version: u32,
    /// Tools that write layouts leave it out of `index.json`.
    #[serde(default = "index_type")]
    pub media_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    pub manifests: Vec<Descriptor>,
}

fn index_type() -> String {
    INDEX_TYPE.into()
}

/// Some tools write `null` where there is nothing.
fn null_is_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Annotations, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("the manifest is not valid JSON of the expected form")]
    Syntax(#[source] serde_json::Error),
    #[error(
        "the manifest has {size} bytes, expected at most {MAX_MANIFEST}; the snapshot is too large for one artifact"
    )]
    TooLarge { size: u64 },
    #[error("the manifest has the media type {found:?}, expected {MANIFEST_TYPE} or {INDEX_TYPE}")]
    MediaType { found: String },
    #[error("this is not a forkd snapshot but an artifact of the type {found:?}")]
    ArtifactType { found: String },
    #[error("the manifest's config has the type {found:?}, expected {CONFIG_TYPE}")]
    ConfigType { found: String },
    #[error("blob {digest} of the frame tables is not a layer of the manifest with {size} bytes")]
    MissingLayer { digest: Digest, size: u64 },
    #[error("layer {digest} of the manifest is in no frame table")]
    UnknownLayer { digest: Digest },
}

/// Manifest or index.
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Typed {
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
}

impl Document {
    pub fn parse(bytes: &[u8]) -> Result<Document, ManifestError> {
        let size = bytes.len() as u64;
        if size > MAX_MANIFEST {
            return Err(ManifestError::TooLarge { size });
        }
        let typed: Typed = serde_json::from_slice(bytes).map_err(ManifestError::Syntax)?;
        let parsed = match typed.media_type.as_deref() {
            Some(MANIFEST_TYPE) => serde_json::from_slice(bytes).map(Document::Manifest),
            Some(INDEX_TYPE) => serde_json::from_slice(bytes).map(Document::Index),
            None if typed.manifests.is_some() => serde_json::from_slice(bytes).map(Document::Index),
            other => {
                let found = other.unwrap_or_default().chars().take(120).collect();
                return Err(ManifestError::MediaType { found });
            }
        };
        parsed.map_err(ManifestError::Syntax)
    }
}

impl Manifest {
    /// The manifest of a snapshot. A blob that several streams have is one layer.
    pub fn of_snapshot(config: &[u8], streams: &[Stream], annotations: Annotations) -> Manifest {
        let mut layers: Vec<Descriptor> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for stream in streams {
            for blob in stream.table.blobs().iter().filter(|blob| seen.insert(blob.digest())) {
                layers.push(Descriptor::new(stream.role.media_type(), blob.digest(), blob.size()));
            }
        }
        Manifest {
            schema_version: 2,
            media_type: MANIFEST_TYPE.into(),
            artifact_type: Some(ARTIFACT_TYPE.into()),
            config: Descriptor::new(CONFIG_TYPE, Digest::of(config), config.len() as u64),
            layers,
            annotations,
        }
    }

    /// Whether this is a snapshot's.
    pub fn check_type(&self) -> Result<(), ManifestError> {
        // Registries that do not know the field have dropped it; the config's type says the same.
        let artifact = self.artifact_type.as_deref().unwrap_or(&self.config.media_type);
        if artifact != ARTIFACT_TYPE && artifact != CONFIG_TYPE {
            return Err(ManifestError::ArtifactType { found: artifact.chars().take(120).collect() });
        }
        if self.config.media_type != CONFIG_TYPE {
            return Err(ManifestError::ConfigType {
                found: self.config.media_type.chars().take(120).collect(),
            });
        }
        Ok(())
    }

    /// Whether the layers are the blobs of the tables, no more and no less.
    pub fn check_layers(&self, config: &Config) -> Result<(), ManifestError> {
        let layers: BTreeMap<Digest, u64> =
            self.layers.iter().map(|layer| (layer.digest, layer.size)).collect();
        let mut used = std::collections::BTreeSet::new();
        for blob in config.streams.iter().flat_map(|stream| stream.table.blobs()) {
            if layers.get(&blob.digest()) != Some(&blob.size()) {
                return Err(ManifestError::MissingLayer { digest: blob.digest(), size: blob.size() });
            }
            used.insert(blob.digest());
        }
        match layers.keys().find(|digest| !used.contains(digest)) {
            Some(digest) => Err(ManifestError::UnknownLayer { digest: *digest }),
            None => Ok(()),
        }
    }
}

impl Descriptor {
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Descriptor {
        Descriptor {
            media_type: media_type.into(),
            digest,
            size,
            artifact_type: None,
            annotations: Annotations::new(),
        }
    }
}

/// JSON as it is sent: the bytes that the digest is of.
pub(crate) fn encode(document: &impl Serialize) -> Result<Vec<u8>, ManifestError> {
    let bytes = serde_json::to_vec(document).map_err(ManifestError::Syntax)?;
    let size = bytes.len() as u64;
    if size > MAX_MANIFEST { Err(ManifestError::TooLarge { size }) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::About;
    use crate::role::Role;
    use crate::testing::{noise, stream_of};
    use proptest::prelude::*;

    #[test]
    fn layers_and_tables_must_be_the_same() {
        let streams = vec![
            stream_of(Role::Memory, "a", &noise(100)),
            stream_of(Role::State, "a", &noise(50)),
            // The same bytes as another stream: one layer.
            stream_of(Role::State, "b", &noise(50)),
        ];
        let config = Config::new(About::new(), streams.clone()).unwrap();
        let manifest = Manifest::of_snapshot(&config.encode().unwrap(), &streams, Annotations::new());
        assert_eq!(manifest.layers.len(), 2);
        let Document::Manifest(parsed) = Document::parse(&encode(&manifest).unwrap()).unwrap() else {
            panic!("a manifest")
        };
        assert_eq!(parsed, manifest);
        parsed.check_type().unwrap();
        parsed.check_layers(&config).unwrap();

        let mut fewer = manifest.clone();
        fewer.layers.pop();
        assert!(matches!(fewer.check_layers(&config), Err(ManifestError::MissingLayer { .. })));
        let mut more = manifest.clone();
        more.layers.push(Descriptor::new("x", Digest::of(b"more"), 4));
        assert!(matches!(more.check_layers(&config), Err(ManifestError::UnknownLayer { .. })));
        let mut longer = manifest;
        longer.layers[0].size += 1;
        assert!(matches!(longer.check_layers(&config), Err(ManifestError::MissingLayer { .. })));
    }

    #[test]
    fn other_artifacts_are_refused_by_type() {
        let image = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":[],
            "annotations":null,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":2,
            "digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}}"#;
        let Document::Manifest(image) = Document::parse(image.as_bytes()).unwrap() else { panic!() };
        let error = image.check_type().unwrap_err().to_string();
        assert!(error.contains("application/vnd.oci.image.config.v1+json"), "{error}");
        assert!(matches!(Document::parse(b"{}"), Err(ManifestError::MediaType { .. })));
        assert!(matches!(Document::parse(b"["), Err(ManifestError::Syntax(_))));
        let large = vec![b' '; (4 << 20) + 1];
        assert!(matches!(Document::parse(&large), Err(ManifestError::TooLarge { .. })));
    }

    fn any_annotations() -> impl Strategy<Value = Annotations> {
        prop::collection::btree_map(".{0,12}", ".{0,12}", 0..3)
    }

    fn any_descriptor() -> impl Strategy<Value = Descriptor> {
        let kind = prop::option::of(".{0,12}");
        (".{0,12}", any::<u64>(), any::<u32>(), kind, any_annotations()).prop_map(
            |(media_type, size, number, artifact_type, annotations)| Descriptor {
                artifact_type,
                annotations,
                ..Descriptor::new(&media_type, Digest::of(&number.to_le_bytes()), size)
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_and_a_part_of_it_is_not(
            config in any_descriptor(),
            layers in prop::collection::vec(any_descriptor(), 0..4),
            annotations in any_annotations(),
            kind in prop::option::of(".{0,12}"),
            cut in any::<prop::sample::Index>(),
        ) {
            let index = Index {
                schema_version: 2,
                media_type: INDEX_TYPE.into(),
                artifact_type: kind.clone(),
                manifests: layers.clone(),
            };
            let text = encode(&index).unwrap();
            let Document::Index(read) = Document::parse(&text).unwrap() else { panic!("an index") };
            prop_assert_eq!(read, index);
            prop_assert!(Document::parse(&text[..cut.index(text.len())]).is_err());
            let media_type = MANIFEST_TYPE.into();
            let manifest = Manifest { schema_version: 2, media_type, artifact_type: kind, config, layers, annotations };
            let text = encode(&manifest).unwrap();
            let Document::Manifest(read) = Document::parse(&text).unwrap() else { panic!("a manifest") };
            prop_assert_eq!(read, manifest);
            prop_assert!(Document::parse(&text[..cut.index(text.len())]).is_err());
        }

        #[test]
        fn any_bytes_are_a_document_or_are_refused(
            bytes in any::<Vec<u8>>(),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let _ = Document::parse(&bytes);
            let streams = [stream_of(Role::State, "a", &noise(50))];
            let config = Config::new(About::new(), streams.to_vec()).unwrap();
            let manifest = Manifest::of_snapshot(&config.encode().unwrap(), &streams, Annotations::new());
            let mut text = encode(&manifest).unwrap();
            for (at, byte) in flips {
                let at = at.index(text.len());
                text[at] = byte;
            }
            if let Ok(Document::Manifest(other)) = Document::parse(&text) {
                let _ = other.check_type();
                // Other fields may have changed.
                if other.check_layers(&config).is_ok() {
                    prop_assert_eq!(other.layers[0].digest, manifest.layers[0].digest);
                }
            }
        }
    }
}
