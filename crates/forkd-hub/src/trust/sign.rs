//! Adding a signature to those that a manifest has.

use bytes::Bytes;
use forkd_source::digest::Digest;
use serde_json::json;

use super::key::{KeyError, SigningKey};
use super::signature::Signature;
use super::signatures::{self, LAYER_TYPE, MAX_SIGNATURES, SIGNATURE, SignaturesError};
use crate::manifest::{self, Annotations, Descriptor, MANIFEST_TYPE, Manifest, ManifestError};
use crate::progress::Progress;
use crate::registry::{RegistryError, Repository};

const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";

/// A manifest was not signed. Signatures that it had are still there.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("cannot read the signatures that {digest} has")]
    Existing { digest: Digest, source: SignaturesError },
    #[error("cannot sign")]
    Key(#[from] KeyError),
    #[error("cannot store the signature of {digest}")]
    Store { digest: Digest, source: RegistryError },
    #[error("cannot describe the signature of {digest}")]
    Describe { digest: Digest, source: ManifestError },
    #[error("cancelled")]
    Cancelled,
}

impl Repository {
    /// Signs a manifest of this repository.
    pub fn sign(&self, digest: Digest, key: &SigningKey, progress: &dyn Progress) -> Result<(), SignError> {
        let signature = key.sign_manifest(&self.name(), digest)?;
        self.add_signature(&signature, progress).map(drop)
    }

    /// Stores a signature beside those that its manifest has. Of a key that has signed it before, it is not stored again; returns
    /// whether it was. If two are stored at the same moment, one is lost: registries have no compare-and-swap for tags.
    pub fn add_signature(&self, signature: &Signature, progress: &dyn Progress) -> Result<bool, SignError> {
        self.block_on(progress, SignError::Cancelled, |repository| add(repository, signature))
    }
}

async fn add(repository: &Repository, signature: &Signature) -> Result<bool, SignError> {
    let digest = signature.digest();
    let existing = |source| SignError::Existing { digest, source };
    let manifest = signatures::read(repository, digest).await.map_err(existing)?;
    let mut layers = manifest.map(|manifest| manifest.layers).unwrap_or_default();
    let its = std::slice::from_ref(signature.key());
    for layer in &layers {
        if signatures::signer(repository, layer, digest, its).await.map_err(existing)?.is_some() {
            return Ok(false);
        }
    }
    if layers.len() >= MAX_SIGNATURES {
        return Err(existing(SignaturesError::TooMany { found: layers.len() + 1 }));
    }
    let describe = |source| SignError::Describe { digest, source };
    let store = |source| SignError::Store { digest, source };

    let payload = Bytes::copy_from_slice(signature.payload().as_bytes());
    let stored = repository.upload_small(&payload).await.map_err(store)?;
    layers.push(Descriptor {
        annotations: [(SIGNATURE.to_owned(), signature.signature().to_owned())].into_iter().collect(),
        ..Descriptor::new(LAYER_TYPE, stored, payload.len() as u64)
    });

    let config = Bytes::from(config(&layers).to_string());
    let stored = repository.upload_small(&config).await.map_err(store)?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: MANIFEST_TYPE.into(),
        artifact_type: None,
        config: Descriptor::new(CONFIG_TYPE, stored, config.len() as u64),
        layers,
        annotations: Annotations::new(),
    };
    let manifest = manifest::encode(&manifest).map_err(describe)?;
    repository.put_manifest(&signatures::tag(digest), MANIFEST_TYPE, &manifest).await.map_err(store)?;
    Ok(true)
}

/// The config of an image without files, which is what such a manifest must have.
fn config(layers: &[Descriptor]) -> serde_json::Value {
    let layers: Vec<String> = layers.iter().map(|layer| layer.digest.to_string()).collect();
    json!({
        "architecture": "",
        "config": {},
        "created": "0001-01-01T00:00:00Z",
        "history": vec![json!({ "created": "0001-01-01T00:00:00Z" }); layers.len()],
        "os": "",
        "rootfs": { "type": "layers", "diff_ids": layers },
    })
}
