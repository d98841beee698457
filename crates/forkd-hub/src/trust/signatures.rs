//! The signatures of a manifest, as they are in a registry.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forkd_source::digest::Digest;

use super::key::PublicKey;
use super::payload::{self, MAX_PAYLOAD};
use crate::artifact::{self, OpenError, SourceError};
use crate::manifest::{Descriptor, Document, MAX_MANIFEST, Manifest, ManifestError};
use crate::registry::{RegistryError, Repository};

pub(super) const LAYER_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The annotation of a layer that has the signature.
pub(super) const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// Signatures on one manifest that are looked at.
pub(super) const MAX_SIGNATURES: usize = 64;
/// Base64 digits of the longest signature.
pub(super) const MAX_SIGNATURE: usize = 256;

/// Signatures could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SignaturesError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error("the signatures are not in the form that cosign writes")]
    Manifest(#[from] ManifestError),
    #[error("the tag {tag} is an index; expected the manifest that cosign writes")]
    Index { tag: String },
    #[error("{found} signatures, expected at most {MAX_SIGNATURES}")]
    TooMany { found: usize },
}

/// The tag that has the signatures of a manifest.
pub(super) fn tag(digest: Digest) -> String {
    format!("sha256-{}.sig", digest.hex())
}

/// The manifest that lists the signatures, if there is one.
pub(super) async fn read(
    repository: &Repository,
    digest: Digest,
) -> Result<Option<Manifest>, SignaturesError> {
    let tag = tag(digest);
    let bytes = match repository.get_manifest(&tag, MAX_MANIFEST).await {
        Ok(bytes) => bytes,
        Err(RegistryError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    parse(tag, &bytes).map(Some)
}

fn parse(tag: String, bytes: &[u8]) -> Result<Manifest, SignaturesError> {
    match Document::parse(bytes)? {
        Document::Index(_) => Err(SignaturesError::Index { tag }),
        Document::Manifest(manifest) if manifest.layers.len() > MAX_SIGNATURES => {
            Err(SignaturesError::TooMany { found: manifest.layers.len() })
        }
        Document::Manifest(manifest) => Ok(manifest),
    }
}

/// The signatures that a manifest of cosign's lists, in DER, whatever they sign. Layers that have none are left out.
pub fn listed_signatures(manifest: &[u8]) -> Result<Vec<Vec<u8>>, SignaturesError> {
    let manifest = parse("given".into(), manifest)?;
    Ok(manifest.layers.iter().filter_map(signature_of).collect())
}

/// The first of the keys that has signed this digest with this layer.
pub(super) async fn signer<'a>(
    repository: &Repository,
    layer: &Descriptor,
    digest: Digest,
    keys: &'a [PublicKey],
) -> Result<Option<&'a PublicKey>, SignaturesError> {
    let Some(signature) = signature_of(layer) else { return Ok(None) };
    let payload = match artifact::small_blob(repository, "payload", layer, MAX_PAYLOAD).await {
        Ok(payload) => payload,
        // A damaged signature does not count. A registry that cannot be reached is an error: a good one may be there.
        Err(OpenError::Read { source: SourceError::Registry(error), .. }) if !error.is_not_found() => {
            return Err(error.into());
        }
        Err(_) => return Ok(None),
    };
    if !payload::is_of(&payload, digest) {
        return Ok(None);
    }
    Ok(keys.iter().find(|key| key.has_signed(&payload, &signature)))
}

fn signature_of(layer: &Descriptor) -> Option<Vec<u8>> {
    let text = layer.annotations.get(SIGNATURE).filter(|text| text.len() <= MAX_SIGNATURE)?;
    if layer.media_type != LAYER_TYPE {
        return None;
    }
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::manifest::MANIFEST_TYPE;

    /// A manifest as cosign writes it.
    fn manifest(layers: &[serde_json::Value]) -> String {
        let config = json!({"mediaType": "x", "digest": Digest::of(b"").to_string(), "size": 0});
        json!({"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": config, "layers": layers})
            .to_string()
    }

    fn layer(kind: &str, signature: &str) -> serde_json::Value {
        let digest = Digest::of(signature.as_bytes()).to_string();
        json!({"mediaType": kind, "digest": digest, "size": 1, "annotations": {SIGNATURE: signature}})
    }

    proptest! {
        #[test]
        fn listed_are_the_layers_that_can_be_signatures(
            layers in prop::collection::vec(
                (any::<bool>(), prop::collection::vec(any::<u8>(), 0..220)),
                0..MAX_SIGNATURES + 6,
            ),
        ) {
            let described = layers.iter().map(|(is_signature, der)| {
                layer(if *is_signature { LAYER_TYPE } else { "text/plain" }, &STANDARD.encode(der))
            });
            let text = manifest(&described.collect::<Vec<_>>());
            match listed_signatures(text.as_bytes()) {
                Ok(listed) => {
                    prop_assert!(layers.len() <= MAX_SIGNATURES);
                    // 256 digits of base64 are 192 bytes.
                    let fits = |(is_signature, der): &(bool, Vec<u8>)| *is_signature && der.len() <= 192;
                    let expected = layers.into_iter().filter(fits).map(|(_, der)| der);
                    prop_assert_eq!(listed, expected.collect::<Vec<_>>());
                }
                Err(error) => prop_assert!(layers.len() > MAX_SIGNATURES, "{}", error),
            }
        }

        #[test]
        fn any_manifest_lists_signatures_or_is_refused(
            bytes in any::<Vec<u8>>(),
            signature in "[A-Za-z0-9+/]{0,12}={0,3}",
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let _ = listed_signatures(&bytes);
            let mut text = manifest(&[layer(LAYER_TYPE, &signature)]).into_bytes();
            for der in listed_signatures(&text).unwrap() {
                prop_assert_eq!(&STANDARD.encode(der), &signature);
            }
            let at = at.index(text.len());
            text[at] = byte;
            let _ = listed_signatures(&text);
        }
    }
}
