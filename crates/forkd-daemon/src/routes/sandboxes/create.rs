//! Sandboxes are made.

use std::ops::RangeInclusive;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use forkd_api::error::ErrorBody;
use forkd_api::percentile::percentile;
use forkd_api::sandbox::{
    Counted, CreateSandboxes, CreateTiming, CreatedSandboxes, Limits, MAX_TTL_SECS, OnExpiry, StepTiming,
};
use forkd_engine as engine;
use forkd_engine::{
    Created, IoQuota, NetworkOrder, NewSandboxes, Owner, Source, StepTimes, WantedLimits, by_step,
};

use crate::app::{App, Shared};
use crate::audit::Sandboxes;
use crate::auth::Caller;
use crate::egress;
use crate::error::{Answer, ApiError};
use crate::extract::Json;
use crate::routes::checks::{self, malformed, within};
use crate::routes::responses::GuestErrors;
use crate::trace::RequestTrace;
use crate::views;

/// The most sandboxes that one request makes.
pub const MOST: u32 = 1000;
/// A TiB.
const MAX_DISK_MIB: u64 = 1 << 20;
/// A TiB a second.
pub(super) const MAX_BANDWIDTH_MIB: u64 = 1 << 20;
/// 16 TiB.
const MAX_MEMORY_MIB: u64 = 1 << 24;

/// Forks sandboxes from a snapshot, or from a sandbox, which is branched first and keeps running.
///
/// Creates all or none of them, unless `partial` is set. Responds when every sandbox has its identity and is ready.
#[utoipa::path(
    post,
    path = "/v1/sandboxes",
    tag = "sandboxes",
    operation_id = "create_sandboxes",
    params(("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer")),
    request_body = CreateSandboxes,
    responses(
        (status = 201, description = "The sandboxes are ready", body = CreatedSandboxes),
        GuestErrors,
        (status = 400, description = "Invalid request, or the daemon cannot enforce these limits", body = ErrorBody),
        (status = 404, description = "Snapshot or sandbox not found", body = ErrorBody),
        (status = 409, description = "The snapshot or sandbox cannot be forked in its current state", body = ErrorBody),
        (status = 429, description = "This host, the project or the token has too many sandboxes", body = ErrorBody),
        (status = 503, description = "The snapshot needs a network, and this daemon has none", body = ErrorBody),
        (status = 507, description = "This host has too little memory or disk space", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    Json(wanted): Json<CreateSandboxes>,
) -> Answer<(StatusCode, Extension<Sandboxes>, Json<CreatedSandboxes>)> {
    forkd_proto::passes!();
    let (of, order) = convert(wanted)?;
    let source = match of {
        Of::Any(name) => app.named(&caller, &name)?,
        Of::Snapshot(tag) => Source::Snapshot(app.snapshot(&caller, &tag)?),
        Of::Sandbox(id) => Source::Sandbox(app.sandbox(&caller, &id)?),
    };
    let project = match &source {
        Source::Snapshot(snapshot) => app.project_for(&caller, &snapshot.view()),
        Source::Sandbox(sandbox) => sandbox.view().record.project,
    };
    let new = order(source, app.owner(&caller, project));
    let created = answer(fork_all(&app, new).await?);
    let ids = created.sandboxes.iter().map(|sandbox| sandbox.id.clone()).collect();
    Ok((StatusCode::CREATED, Extension(Sandboxes(ids)), Json(created)))
}

/// Makes sandboxes, even if the caller disconnects.
pub async fn fork_all(app: &App, new: NewSandboxes) -> Answer<Created> {
    let engine = app.engine.clone();
    let create =
        async move { engine.create(new).await.inspect(|made| RequestTrace::current().created(made)) };
    let created = app.to_its_end(create).await??;
    measure(app, &created);
    Ok(created)
}

/// What sandboxes are to be made of, by name.
enum Of {
    Any(String),
    Snapshot(String),
    Sandbox(String),
}

/// What a body names, and what it asks for once that is found.
fn convert(wanted: CreateSandboxes) -> Answer<(Of, impl FnOnce(Source, Owner) -> NewSandboxes)> {
    let CreateSandboxes { source, snapshot_tag, from_sandbox, n, partial, metadata, env, limits, .. } =
        wanted;
    let CreateSandboxes { ttl_secs, on_expiry, wake_on_traffic, egress, counted, .. } = wanted;
    let of = match (source, snapshot_tag, from_sandbox) {
        (Some(name), None, None) => Of::Any(name),
        (None, Some(tag), None) => Of::Snapshot(tag),
        (None, None, Some(id)) => Of::Sandbox(id),
        _ => return Err(malformed("expected exactly one of source, snapshot_tag and from_sandbox")),
    };
    let bandwidth =
        limits.bandwidth_mib.map(|mib| within("limits.bandwidth_mib", mib, 1..=MAX_BANDWIDTH_MIB));
    let network = NetworkOrder {
        egress: egress.map(egress::convert).transpose()?,
        bandwidth: bandwidth.transpose()?.map(|mib| mib << 20),
    };
    let limits = wanted_limits(&limits)?;
    let ttl = ttl_secs.map(|seconds| within("ttl_secs", seconds, 1..=MAX_TTL_SECS)).transpose()?;
    let on_expiry = match on_expiry {
        OnExpiry::End => engine::OnExpiry::End,
        OnExpiry::Pause => engine::OnExpiry::Pause,
    };
    checks::metadata(&metadata)?;
    checks::env(&env)?;
    let count = within("n", n, 1..=MOST)?;
    let order = move |source, owner| NewSandboxes {
        source,
        count,
        partial,
        ttl: ttl.map(Duration::from_secs),
        on_expiry,
        wake_on_traffic,
        metadata,
        about: serde_json::Map::new(),
        env,
        account: None,
        limits,
        network,
        counted,
        owner: Some(owner),
    };
    Ok((of, order))
}

fn wanted_limits(limits: &Limits) -> Answer<WantedLimits> {
    let checked = |name: &str, value: Option<u64>, range: RangeInclusive<u64>| {
        value.map(|value| within(&format!("limits.{name}"), value, range)).transpose()
    };
    let rate = |name: &str, value| checked(name, value, 4096..=1 << 40);
    let weight = checked("cpu_weight", limits.cpu_weight.map(u64::from), 1..=10_000)?;
    Ok(WantedLimits {
        disk_bytes: checked("disk_mib", limits.disk_mib, 1..=MAX_DISK_MIB)?.map(|mib| mib << 20),
        memory_bytes: checked("memory_mib", limits.memory_mib, 16..=MAX_MEMORY_MIB)?.map(|mib| mib << 20),
        cpu_millis: checked("cpu_percent", limits.cpu_percent, 1..=102_400)?.map(|percent| percent * 10),
        cpu_weight: weight.and_then(|weight| u16::try_from(weight).ok()),
        io: IoQuota {
            read_bytes: rate("read_bytes_per_sec", limits.read_bytes_per_sec)?,
            write_bytes: rate("write_bytes_per_sec", limits.write_bytes_per_sec)?,
            operations: checked("io_per_sec", limits.io_per_sec, 1..=1_000_000_000)?,
        },
    })
}

fn measure(app: &App, created: &Created) {
    let count = u64::try_from(created.sandboxes.len()).unwrap_or(u64::MAX);
    app.metrics.engine.forked(count, created.restored, created.ready);
    for window in &created.windows {
        app.metrics.engine.identified(*window);
    }
    if let Some(pause) = created.branch_pause {
        app.metrics.engine.branched(pause);
    }
}

fn answer(created: Created) -> CreatedSandboxes {
    let steps = by_step(&created.laps).iter().map(step).collect();
    CreatedSandboxes {
        sandboxes: created.sandboxes.iter().map(views::sandbox).collect(),
        failures: created.failures.into_iter().map(|error| ApiError::from(error).logged()).collect(),
        timing: CreateTiming { restored_us: us(created.restored), ready_us: us(created.ready), steps },
        counted: created.counted.into_iter().map(counted).collect(),
    }
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn step(times: &StepTimes) -> StepTiming {
    let at = |percent| us(percentile(&times.took, percent));
    StepTiming {
        step: times.step.name().into_owned(),
        count: u32::try_from(times.took.len()).unwrap_or(u32::MAX),
        p50_us: at(50),
        p99_us: at(99),
        max_us: at(100),
    }
}

fn counted(counted: engine::Counted) -> Counted {
    let stats = |usage| views::stats(usage, None);
    Counted { running: stats(counted.running), ready: stats(counted.ready) }
}

#[cfg(test)]
mod tests {
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
        let limited = |limits| CreateSandboxes { limits, ..wanted() };
        let disk = limited(Limits { disk_mib: Some(0), ..Limits::default() });
        let bandwidth = limited(Limits { bandwidth_mib: Some(0), ..Limits::default() });
        let memory = limited(Limits { memory_mib: Some(15), ..Limits::default() });
        let weight = limited(Limits { cpu_weight: Some(10_001), ..Limits::default() });
        let rate = limited(Limits { write_bytes_per_sec: Some(1), ..Limits::default() });
        for (wrong, says) in [
            (both, "one of source, snapshot_tag and from_sandbox"),
            (neither, "one of source, snapshot_tag and from_sandbox"),
            (disk, "limits.disk_mib is 0"),
            (bandwidth, "limits.bandwidth_mib is 0"),
            (memory, "limits.memory_mib is 15, expected 16 to"),
            (weight, "limits.cpu_weight is 10001, expected 1 to 10000"),
            (rate, "limits.write_bytes_per_sec is 1"),
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
            let error = convert(wrong).err().unwrap();
            assert_eq!(error.code().status(), 400);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
