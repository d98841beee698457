//! Signatures of snapshots in registries: those that are stored, and those that a pull demands.
//!
//! ```text
//!   sign   the client has the private key:  push or resolve ──▶ digest ──▶ (signed there) ──▶ POST signatures ──▶ registry
//!   pull   policy ──▶ digest that the tag names now ──▶ signatures of this digest ──▶ config and blobs of this digest
//! ```

use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::error::{ErrorBody, ErrorCode};
use forkd_api::snapshot::{AddSnapshotSignature, ResolveSnapshot, ResolvedSnapshot, SnapshotSignature};
use forkd_hub::registry::Repository;
use forkd_hub::trust::{PublicKey, Requirement, Signature, VerifyError};
use forkd_hub::{Artifact, Progress, Selector, first_variant};

use crate::app::Shared;
use crate::error::{Answer, ApiError, chain};
use crate::extract::Json;
use crate::routes::checks::malformed;
use crate::routes::responses::LibraryErrors;
use crate::routes::snapshots::travel::{asked, repository, unusable};
use crate::snapshot_policy::PolicyFile;

/// Resolves a reference to a registry to the digest of a snapshot, which is what signatures sign.
///
/// Needs the scope admin.
#[utoipa::path(
    post,
    path = "/v1/snapshots/resolve",
    tag = "snapshots",
    operation_id = "resolve_snapshot",
    request_body = ResolveSnapshot,
    responses(
        (status = 200, description = "The repository and the digest", body = ResolvedSnapshot),
        LibraryErrors,
        (status = 502, description = "The registry has no usable snapshot there", body = ErrorBody),
    )
)]
pub(super) async fn resolve(
    State(app): State<Shared>,
    Json(wanted): Json<ResolveSnapshot>,
) -> Answer<Json<ResolvedSnapshot>> {
    let ResolveSnapshot { reference, credentials } = wanted;
    asked(&app, move |progress| {
        let repository = repository(&reference, credentials)?;
        // All variants have one digest: that of the index.
        let artifact = repository.open(&first_variant, progress).map_err(unusable)?;
        let digest = artifact.root_digest().to_string();
        Ok(Json(ResolvedSnapshot { repository: repository.name(), digest }))
    })
    .await
}

/// Adds a signature of a snapshot to the snapshot's registry, as cosign does.
///
/// Needs the scope admin. The client signs with its private key; the daemon checks the signature with the public key.
#[utoipa::path(
    post,
    path = "/v1/snapshots/signatures",
    tag = "snapshots",
    operation_id = "add_snapshot_signature",
    request_body = AddSnapshotSignature,
    responses(
        (status = 201, description = "The stored signature", body = SnapshotSignature),
        LibraryErrors,
        (status = 400, description = "Invalid request, or the signature does not match", body = ErrorBody),
        (status = 502, description = "The registry does not have the snapshot, or refuses the signature", body = ErrorBody),
    )
)]
pub(super) async fn add(
    State(app): State<Shared>,
    Json(wanted): Json<AddSnapshotSignature>,
) -> Answer<(StatusCode, Json<SnapshotSignature>)> {
    let AddSnapshotSignature { reference, payload, signature, key, credentials } = wanted;
    let key = public_key(&key)?;
    asked(&app, move |progress| {
        let repository = repository(&reference, credentials)?;
        let digest = repository.digest().ok_or_else(|| {
            malformed(format!("{reference:?} has no digest; expected registry/repository@sha256:..."))
        })?;
        let signature = Signature::parse(digest, payload, signature, key);
        let signature = signature.map_err(|error| malformed(chain(&error)))?;
        // A signature of nothing would be kept for ever.
        repository.resolve(progress).map_err(unusable)?;
        let added = repository.add_signature(&signature, progress).map_err(unusable)?;
        let reference = format!("{}@{digest}", repository.name());
        let stored = SnapshotSignature { reference, key: signature.key().fingerprint(), added };
        Ok((StatusCode::CREATED, Json(stored)))
    })
    .await
}

pub(super) fn public_key(pem: &str) -> Answer<PublicKey> {
    PublicKey::from_pem(pem).map_err(|error| malformed(format!("invalid key: {error}")))
}

/// Opens a snapshot in a registry, if it is signed as the policy and the caller demand. Nothing but manifests and signatures is
/// fetched before that is known, and what is opened is what was verified.
pub(super) fn open(
    policy: &PolicyFile,
    repository: &Repository,
    key: Option<&PublicKey>,
    select: Selector<'_>,
    progress: &dyn Progress,
) -> Answer<Artifact> {
    let path = policy.path().display().to_string();
    let policy = policy.read().map_err(|error| {
        not_trusted(format!("{}; no snapshot is pulled until the daemon can read its policy", chain(&error)))
    })?;
    let name = repository.name();
    let mut demands: Vec<(String, &[PublicKey])> = Vec::new();
    match policy.as_ref().map(|policy| policy.check(&name)) {
        None | Some(Requirement::Accept) => {}
        Some(Requirement::Signed { pattern, keys }) => {
            demands.push((format!("the rule for {pattern:?} in {path} requires a signature"), keys));
        }
        Some(Requirement::Refuse) => {
            let text = format!("{} is refused: {path} has no rule for {name}", repository.reference());
            return Err(not_trusted(text));
        }
    }
    if let Some(key) = key {
        let why = format!("the request requires a signature by the key {}", key.fingerprint());
        demands.push((why, std::slice::from_ref(key)));
    }
    if demands.is_empty() {
        return repository.open(select, progress).map_err(unusable);
    }
    let digest = repository.resolve(progress).map_err(unusable)?;
    for (why, keys) in demands {
        repository.verify(digest, keys, progress).map_err(|error| unverified(&error, &why))?;
    }
    repository.open_digest(digest, select, progress).map_err(unusable)
}

fn unverified(error: &VerifyError, why: &str) -> ApiError {
    match error {
        VerifyError::Unsigned { .. } | VerifyError::NotTrusted { .. } | VerifyError::Bundle { .. } => {
            not_trusted(format!("{}; {why}", chain(error)))
        }
        VerifyError::Signatures { .. } | VerifyError::Cancelled => unusable(error),
    }
}

fn not_trusted(text: String) -> ApiError {
    ApiError::new(ErrorCode::NotTrusted, text)
}
