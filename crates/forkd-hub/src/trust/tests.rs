//! Signatures in a registry, good and bad.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forkd_source::digest::Digest;

use super::signatures::SIGNATURE;
use super::*;
use crate::manifest::{INDEX_TYPE, MANIFEST_TYPE};
use crate::progress::Silent;
use crate::registry::Repository;
use crate::testing::registry::{Faults, TestRegistry};

fn repository(registry: &TestRegistry) -> Repository {
    Repository::new(&format!("{}/team/a:v1", registry.address), None).unwrap()
}

fn tag(digest: Digest) -> String {
    format!("sha256-{}.sig", digest.hex())
}

fn signatures(registry: &TestRegistry, digest: Digest) -> serde_json::Value {
    serde_json::from_slice(&registry.manifest("team/a", &tag(digest)).unwrap()).unwrap()
}

#[test]
fn a_signature_is_found_by_its_key_and_others_are_kept() {
    let registry = TestRegistry::start();
    let repository = repository(&registry);
    let digest = Digest::of(b"manifest");
    let [first, second, other] = [(); 3].map(|()| SigningKey::generate().unwrap());
    let keys = [other.public(), second.public()];
    assert!(matches!(repository.verify(digest, &keys, &Silent), Err(VerifyError::Unsigned { .. })));
    repository.sign(digest, &first, &Silent).unwrap();
    let error = repository.verify(digest, &keys, &Silent).unwrap_err();
    assert!(error.to_string().contains("(1) is by an accepted key"), "{error}");
    repository.sign(digest, &second, &Silent).unwrap();
    assert_eq!(repository.verify(digest, &keys, &Silent).unwrap(), &second.public());
    assert_eq!(repository.verify(digest, &[first.public()], &Silent).unwrap(), &first.public());
    // Signing again with the same key adds nothing.
    let again = first.sign_manifest(&repository.name(), digest).unwrap();
    assert!(!repository.add_signature(&again, &Silent).unwrap());
    let manifest = signatures(&registry, digest);
    assert_eq!(manifest["layers"].as_array().unwrap().len(), 2);
    assert_eq!(manifest["layers"][0]["mediaType"], "application/vnd.dev.cosign.simplesigning.v1+json");
    let another = repository.verify(Digest::of(b"another"), &keys, &Silent);
    assert!(matches!(another, Err(VerifyError::Unsigned { .. })));
}

#[test]
fn a_signature_of_something_else_does_not_count() {
    let registry = TestRegistry::start();
    let repository = repository(&registry);
    let key = SigningKey::generate().unwrap();
    let keys = [key.public()];
    let (signed, other) = (Digest::of(b"signed"), Digest::of(b"other"));
    repository.sign(signed, &key, &Silent).unwrap();
    let good = signatures(&registry, signed);
    let put = |manifest: &serde_json::Value| {
        registry.put_manifest("team/a", &tag(other), MANIFEST_TYPE, manifest.to_string().as_bytes());
    };
    let refused = |manifest: &serde_json::Value, says: &str| {
        put(manifest);
        let error = repository.verify(other, &keys, &Silent).unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        assert!(format!("{error}: {source}").contains(says), "{error}: {source}");
    };
    // The signatures of another manifest, moved.
    refused(&good, "is by an accepted key");
    // The right payload with the signature of another.
    let payload = super::payload::payload("a/b", other).unwrap();
    let stored = registry.put_blob("team/a", payload.as_bytes());
    let mut mixed = good.clone();
    mixed["layers"][0]["digest"] = stored.to_string().into();
    mixed["layers"][0]["size"] = payload.len().into();
    refused(&mixed, "is by an accepted key");
    for signature in ["", "?", &"A".repeat(10_000), &STANDARD.encode([0x30, 0])] {
        mixed["layers"][0]["annotations"][SIGNATURE] = signature.into();
        refused(&mixed, "is by an accepted key");
    }
    // A payload that is not there, or larger than any.
    let mut missing = good.clone();
    missing["layers"][0]["digest"] = Digest::of(b"missing").to_string().into();
    refused(&missing, "is by an accepted key");
    missing["layers"][0]["size"] = (1 << 30).into();
    refused(&missing, "is by an accepted key");
    let mut many = good.clone();
    many["layers"] = vec![good["layers"][0].clone(); 65].into();
    refused(&many, "65 signatures");
    assert!(matches!(repository.sign(other, &key, &Silent), Err(SignError::Existing { .. })));
    // One good signature beside a bad one is enough.
    put(&good);
    repository.sign(other, &key, &Silent).unwrap();
    assert_eq!(signatures(&registry, other)["layers"].as_array().unwrap().len(), 2);
    assert_eq!(repository.verify(other, &keys, &Silent).unwrap(), &keys[0]);
}

#[test]
fn bundles_are_refused_by_name() {
    let registry = TestRegistry::start();
    let repository = repository(&registry);
    let digest = Digest::of(b"manifest");
    let index = serde_json::json!({
        "schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [{
            "mediaType": MANIFEST_TYPE, "size": 2, "digest": Digest::of(b"{}").to_string(),
            "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        }],
    });
    let tag = format!("sha256-{}", digest.hex());
    registry.put_manifest("team/a", &tag, INDEX_TYPE, index.to_string().as_bytes());
    let error = repository.verify(digest, &[], &Silent).unwrap_err();
    assert!(matches!(error, VerifyError::Bundle { .. }));
    assert!(
        error.to_string().contains("cosign 3 (application/vnd.dev.sigstore.bundle.v0.3+json)"),
        "{error}"
    );
}

#[test]
fn a_registry_that_fails_is_not_a_missing_signature() {
    let registry = TestRegistry::start();
    let repository = repository(&registry);
    let digest = Digest::of(b"manifest");
    registry.set(Faults { password: Some("x"), ..Faults::default() });
    let error = repository.verify(digest, &[], &Silent).unwrap_err();
    assert!(matches!(error, VerifyError::Signatures { .. }), "{error}");
    let error = repository.sign(digest, &SigningKey::generate().unwrap(), &Silent).unwrap_err();
    assert!(matches!(error, SignError::Existing { .. }), "{error}");
}
