//! Sandboxes are made.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::error::ErrorBody;
use forkd_api::sandbox::{CreateSandboxes, CreateTiming, CreatedSandboxes, MAX_TTL_SECS};
use forkd_engine::engine::{Created, NetworkOrder, NewSandboxes, Source};

use crate::app::{App, Shared};
use crate::audit::Sandboxes;
use crate::egress;
use crate::error::{Answer, ApiError};
use crate::extract::Json;
use crate::routes::checks::{self, malformed, within};
use crate::views;

const MOST: u32 = 1000;
/// A TiB.
const MAX_DISK_MIB: u64 = 1 << 20;
/// A TiB a second.
const MAX_BANDWIDTH_MIB: u64 = 1 << 20;

/// Forks sandboxes from a snapshot, or straight from a sandbox, which is branched first and goes on.
///
/// All come up, or none, unless `partial` is set. The answer comes when every one has its identity and is ready.
#[utoipa::path(
    post,
    path = "/v1/sandboxes",
    tag = "sandboxes",
    operation_id = "create_sandboxes",
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key gets the same answer")),
    request_body = CreateSandboxes,
    responses(
        (status = 201, description = "They are ready", body = CreatedSandboxes),
        (status = 400, description = "The request makes no sense", body = ErrorBody),
        (status = 404, description = "There is no such snapshot or sandbox", body = ErrorBody),
        (status = 409, description = "The snapshot or the sandbox cannot be forked in its state", body = ErrorBody),
        (status = 429, description = "This host has too many sandboxes", body = ErrorBody),
        (status = 502, description = "A guest gave no answer that can be used", body = ErrorBody),
        (status = 504, description = "A guest did not answer in time", body = ErrorBody),
        (status = 503, description = "This daemon gives sandboxes no network, and the snapshot has one", body = ErrorBody),
        (status = 507, description = "This host has too little memory or disk space", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): State<Shared>,
    Json(wanted): Json<CreateSandboxes>,
) -> Answer<(StatusCode, Extension<Sandboxes>, Json<CreatedSandboxes>)> {
    let new = convert(wanted)?;
    let engine = app.engine.clone();
    let created = app.to_its_end(async move { engine.create(new).await }).await??;
    measure(&app, &created);
    let created = answer(created);
    let ids = created.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
    Ok((StatusCode::CREATED, Extension(Sandboxes(ids)), Json(created)))
}

fn convert(wanted: CreateSandboxes) -> Answer<NewSandboxes> {
    let CreateSandboxes { snapshot_tag, from_sandbox, n, partial, ttl_secs, metadata, env, limits, egress } =
        wanted;
    let source = match (snapshot_tag, from_sandbox) {
        (Some(tag), None) => Source::Snapshot(tag),
        (None, Some(id)) => Source::Sandbox(id),
        _ => return Err(malformed("expected one of snapshot_tag and from_sandbox")),
    };
    let disk = limits.disk_mib.map(|mib| within("limits.disk_mib", mib, 1..=MAX_DISK_MIB)).transpose()?;
    let bandwidth =
        limits.bandwidth_mib.map(|mib| within("limits.bandwidth_mib", mib, 1..=MAX_BANDWIDTH_MIB));
    let network = NetworkOrder {
        egress: egress.map(egress::convert).transpose()?,
        bandwidth: bandwidth.transpose()?.map(|mib| mib << 20),
    };
    let ttl = ttl_secs.map(|seconds| within("ttl_secs", seconds, 1..=MAX_TTL_SECS)).transpose()?;
    checks::metadata(&metadata)?;
    checks::env(&env)?;
    let count = within("n", n, 1..=MOST)?;
    let (ttl, disk_bytes) = (ttl.map(Duration::from_secs), disk.map(|mib| mib << 20));
    Ok(NewSandboxes { source, count, partial, ttl, metadata, env, disk_bytes, network })
}

fn measure(app: &App, created: &Created) {
    let count = u64::try_from(created.sandboxes.len()).unwrap_or(u64::MAX);
    app.metrics.engine.forked(count, created.restored, created.ready);
    if let Some(pause) = created.branch_pause {
        app.metrics.engine.branched(pause);
    }
}

fn answer(created: Created) -> CreatedSandboxes {
    let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    CreatedSandboxes {
        sandboxes: created.sandboxes.iter().map(views::sandbox).collect(),
        failures: created.failures.into_iter().map(|error| ApiError::from(error).logged()).collect(),
        timing: CreateTiming { restored_us: us(created.restored), ready_us: us(created.ready) },
    }
}

#[cfg(test)]
mod tests {
    use forkd_api::sandbox::Limits;

    use super::*;

    fn wanted() -> CreateSandboxes {
        CreateSandboxes { snapshot_tag: Some("base".into()), n: 1, ..CreateSandboxes::default() }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_words() {
        assert!(convert(wanted()).is_ok());
        assert!(convert(CreateSandboxes { n: MOST, ttl_secs: Some(MAX_TTL_SECS), ..wanted() }).is_ok());
        let both = CreateSandboxes { from_sandbox: Some("i".into()), ..wanted() };
        let neither = CreateSandboxes { snapshot_tag: None, ..wanted() };
        let disk = CreateSandboxes { limits: Limits { disk_mib: Some(0), ..Limits::default() }, ..wanted() };
        let bandwidth =
            CreateSandboxes { limits: Limits { bandwidth_mib: Some(0), ..Limits::default() }, ..wanted() };
        for (wrong, says) in [
            (both, "one of snapshot_tag and from_sandbox"),
            (neither, "one of snapshot_tag and from_sandbox"),
            (disk, "limits.disk_mib is 0"),
            (bandwidth, "limits.bandwidth_mib is 0"),
            (CreateSandboxes { n: 0, ..wanted() }, "n is 0, expected 1 to 1000"),
            (CreateSandboxes { n: 1001, ..wanted() }, "n is 1001"),
            (CreateSandboxes { ttl_secs: Some(0), ..wanted() }, "ttl_secs is 0"),
            (CreateSandboxes { ttl_secs: Some(u64::MAX), ..wanted() }, "ttl_secs is"),
            (
                CreateSandboxes { metadata: [(String::new(), String::new())].into(), ..wanted() },
                "metadata has",
            ),
            (CreateSandboxes { env: [("A=".into(), String::new())].into(), ..wanted() }, "env has"),
        ] {
            let error = convert(wrong).unwrap_err();
            assert_eq!(error.code().status(), 400);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
