//! Every byte of a snapshot is read and checked. It is cancelled if the caller disconnects.

use axum::Extension;
use axum::extract::State;
use forkd_api::error::ErrorBody;
use forkd_api::snapshot::{SnapshotDamage, SnapshotVerification};
use forkd_engine::{Damage, Verified};
use forkd_store::Tag;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::Answer;
use crate::extract::{Json, Path};
use crate::jobs::Place;

/// Verifies every file of a snapshot and of the snapshots it is based on, at low priority.
#[utoipa::path(
    post,
    path = "/v1/snapshots/{tag}/verify",
    tag = "snapshots",
    operation_id = "verify_snapshot",
    params(("tag" = String, Path)),
    responses(
        (status = 200, description = "The result, with the first damaged file if any", body = SnapshotVerification),
        (status = 403, description = "The snapshot is public, but belongs to another project", body = ErrorBody),
        (status = 404, description = "No snapshot has this tag", body = ErrorBody),
        (status = 409, description = "The snapshot is not on disk: writing it failed", body = ErrorBody),
        (status = 429, description = "Too many long jobs are running", body = ErrorBody),
    )
)]
pub(super) async fn verify(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(tag): Path<String>,
) -> Answer<Json<SnapshotVerification>> {
    let tag = app.own_snapshot(&caller, &tag)?.tag();
    let place = Place::take(&app).await?;
    let verified = app.engine.verify(&tag, place).await?;
    Ok(Json(convert(&tag, verified)))
}

fn convert(tag: &Tag, verified: Verified) -> SnapshotVerification {
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let damage = verified.damage.map(|Damage { file, problem }| SnapshotDamage {
        file: file.map(|file| file.display().to_string()),
        problem,
    });
    SnapshotVerification {
        tag: tag.to_string(),
        intact: damage.is_none(),
        snapshots: count(verified.snapshots),
        disk_layers: count(verified.layers),
        bytes: verified.bytes,
        damage,
    }
}
