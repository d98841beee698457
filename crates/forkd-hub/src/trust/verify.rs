//! Whether a manifest is signed with a key that is accepted.

use forkd_source::digest::Digest;

use super::key::PublicKey;
use super::signatures::{self, SignaturesError};
use crate::manifest::{Document, MAX_MANIFEST};
use crate::progress::Progress;
use crate::registry::{RegistryError, Repository};

/// What the types of cosign 3's bundles begin with, whatever their version.
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle";

/// A manifest does not count as signed.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error("{repository}@{digest} is not signed")]
    Unsigned { repository: String, digest: Digest },
    #[error("none of the signatures of {repository}@{digest} ({count}) is by an accepted key ({keys})")]
    NotTrusted { repository: String, digest: Digest, count: usize, keys: String },
    #[error(
        "{repository}@{digest} is signed with a bundle of cosign 3 ({media_type}), which is not supported; sign it with forkd, or with cosign sign --new-bundle-format=false"
    )]
    Bundle { repository: String, digest: Digest, media_type: String },
    #[error("cannot read the signatures of {digest}")]
    Signatures { digest: Digest, source: SignaturesError },
    #[error("cancelled")]
    Cancelled,
}

impl Repository {
    /// Finds a signature of a manifest of this repository by one of the keys; returns that key.
    pub fn verify<'a>(
        &self,
        digest: Digest,
        keys: &'a [PublicKey],
        progress: &dyn Progress,
    ) -> Result<&'a PublicKey, VerifyError> {
        self.block_on(progress, VerifyError::Cancelled, |repository| find(repository, digest, keys))
    }
}

pub(crate) async fn find<'a>(
    repository: &Repository,
    digest: Digest,
    keys: &'a [PublicKey],
) -> Result<&'a PublicKey, VerifyError> {
    let failed = |source| VerifyError::Signatures { digest, source };
    let manifest = signatures::read(repository, digest).await.map_err(failed)?;
    let layers = manifest.map(|manifest| manifest.layers).unwrap_or_default();
    for layer in &layers {
        if let Some(key) = signatures::signer(repository, layer, digest, keys).await.map_err(failed)? {
            return Ok(key);
        }
    }
    let name = repository.name();
    if let Some(media_type) = bundle(repository, digest).await.map_err(|error| failed(error.into()))? {
        return Err(VerifyError::Bundle { repository: name, digest, media_type });
    }
    if layers.is_empty() {
        return Err(VerifyError::Unsigned { repository: name, digest });
    }
    let fingerprints: Vec<String> = keys.iter().map(PublicKey::fingerprint).collect();
    let keys = if keys.is_empty() { "no keys are accepted".into() } else { fingerprints.join(", ") };
    Err(VerifyError::NotTrusted { repository: name, digest, count: layers.len(), keys })
}

/// The type of a cosign 3 bundle that refers to a manifest, if there is one.
async fn bundle(repository: &Repository, digest: Digest) -> Result<Option<String>, RegistryError> {
    let fallback = format!("sha256-{}", digest.hex());
    let listed = match repository.get_referrers(digest).await {
        Err(RegistryError::NotFound { .. }) => repository.get_manifest(&fallback, MAX_MANIFEST).await,
        other => other,
    };
    let bytes = match listed {
        Ok(bytes) => bytes,
        // A registry may know no referrers at all, and say so in its own way.
        Err(RegistryError::NotFound { .. } | RegistryError::Status { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(Document::Index(index)) = Document::parse(&bytes) else { return Ok(None) };
    let mut types = index.manifests.into_iter().filter_map(|entry| entry.artifact_type);
    let found = types.find(|kind| kind.starts_with(BUNDLE));
    Ok(found.map(|kind| kind.chars().take(120).collect()))
}
