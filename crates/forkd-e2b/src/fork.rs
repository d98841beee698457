//! Sandboxes are forked: each of the new ones continues from the state of the first, which keeps running.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use forkd_engine::{NetworkOrder, NewSandboxes, OnExpiry, Source, WantedLimits};
use forkd_proto::agent::account::Account;

use super::about::{About, TIMEOUT};
use super::domain;
use super::error::Body as ErrorBody;
use super::models::{Body, Fork, Forked, Sandbox};
use super::sandboxes::{find, time};
use crate::App;
use forkd_daemon::audit::Sandboxes;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::{Answer, ApiError};
use forkd_daemon::extract::{Json, Path};
use forkd_daemon::operations::checks::within;
use forkd_daemon::operations::{MOST, fork_all};

/// Makes as many as are asked for, beyond E2B's twenty too. Those that do not come up are told as errors in their places.
pub(super) async fn fork(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
    Body(wanted): Body<Fork>,
) -> Answer<(StatusCode, Extension<Sandboxes>, Json<Vec<Forked>>)> {
    let count = within("count", wanted.count.unwrap_or(1), 1..=MOST)?;
    let timeout = time("timeout", wanted.timeout, TIMEOUT)?;
    let sandbox = find(&app, &caller, &id)?;
    let record = sandbox.view().record;
    let about = About::of(&record).kept();
    let new = NewSandboxes {
        source: Source::Sandbox(sandbox),
        count,
        partial: true,
        ttl: Some(Duration::from_secs(timeout)),
        on_expiry: if record.pauses_at_expiry { OnExpiry::Pause } else { OnExpiry::End },
        wake_on_traffic: record.wake.is_some(),
        metadata: record.metadata,
        about,
        env: std::collections::BTreeMap::new(),
        account: Some(Account::e2b()),
        network: NetworkOrder::default(),
        limits: WantedLimits::default(),
        counted: false,
        owner: Some(app.owner(&caller, record.project)),
    };
    let made = fork_all(&app, new).await?;
    let ids = made.sandboxes.iter().map(|view| view.record.id.to_string()).collect();
    let domain = domain(&headers);
    let sandboxes =
        made.sandboxes.iter().map(|view| Forked::Sandbox(Sandbox::of(view, &app.e2b.keys, domain.clone())));
    let failures = made.failures.into_iter().map(|error| {
        let body = ApiError::from(error).logged();
        Forked::Error(ErrorBody::of(body.code, body.error))
    });
    Ok((StatusCode::CREATED, Extension(Sandboxes(ids)), Json(sandboxes.chain(failures).collect())))
}
