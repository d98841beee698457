//! Sandboxes are made, shown and ended.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use forkd_api::error::ErrorCode;
use forkd_api::sandbox::MAX_TTL_SECS;
use forkd_api::token::Scope;
use forkd_engine::{
    EngineError, NetworkChange, NetworkOrder, NewSandboxes, OnExpiry, SandboxHandle, SandboxState,
    SnapshotHandle, Source, WantedLimits,
};
use forkd_proto::agent::account::Account;
use serde_json::Value;

use std::time::Duration;

use super::about::{About, TIMEOUT};
use super::models::{Body, NewSandbox, Sandbox, SandboxDetail};
use super::network::Network;
use super::{domain, templates};
use crate::App;
use forkd_daemon::audit::Sandboxes;
use forkd_daemon::auth::Caller;
use forkd_daemon::error::Answer;
use forkd_daemon::extract::{Json, Path};
use forkd_daemon::operations::checks::{self, malformed, within};
use forkd_daemon::operations::fork_all;

/// What a new sandbox is answered with.
pub(super) type Made = (StatusCode, Extension<Sandboxes>, Json<Sandbox>);

/// The sandbox of this id, if it has not ended: to E2B's clients, one that has is gone.
pub(super) fn find(app: &App, caller: &Caller, id: &str) -> Answer<SandboxHandle> {
    let sandbox = app.sandbox(caller, id)?;
    match sandbox.view().state {
        SandboxState::Ended => Err(EngineError::NoSandbox(id.to_owned()).into()),
        _ => Ok(sandbox),
    }
}

/// How long something lives.
pub(super) fn time(name: &str, seconds: Option<u64>, default: u64) -> Answer<u64> {
    within(name, seconds.unwrap_or(default), 0..=MAX_TTL_SECS)
}

/// As clients up to 2.50 ask: what is not said to be secure is not.
pub(super) async fn create_v1(
    state: State<App>,
    caller: Extension<Caller>,
    headers: HeaderMap,
    Body(wanted): Body<NewSandbox>,
) -> Answer<Made> {
    let secure = wanted.secure.unwrap_or(false);
    create(state, caller, headers, Body(NewSandbox { secure: Some(secure), ..wanted })).await
}

pub(super) async fn create(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(wanted): Body<NewSandbox>,
) -> Answer<Made> {
    forkd_proto::passes!();
    let new = convert(wanted)?;
    let template = new.about.template.clone().unwrap_or_default();
    let snapshot = templates::resolve(&app, &caller, &template).await?;
    let created = match fork_all(&app, order(&app, &caller, &new, &snapshot)).await {
        // It was built again meanwhile: the name means another one.
        Err(error) if error.code() == ErrorCode::NotFound => {
            let again = templates::resolve(&app, &caller, &template).await?;
            fork_all(&app, order(&app, &caller, &new, &again)).await?
        }
        created => created?,
    };
    let view = created.sandboxes.first().ok_or(EngineError::Removed)?;
    let sandbox = Sandbox::of(view, &app.e2b.keys, domain(&headers));
    Ok((StatusCode::CREATED, Extension(Sandboxes(vec![sandbox.sandbox_id.clone()])), Json(sandbox)))
}

fn order(app: &App, caller: &Caller, new: &SandboxRequest, snapshot: &SnapshotHandle) -> NewSandboxes {
    let view = snapshot.view();
    // A guest without a network is as isolated as can be.
    let nothing = view.record.shape.devices.net.is_none() && new.egress == Some(forkd_net::Egress::Deny);
    let egress = new.egress.clone().filter(|_| !nothing);
    NewSandboxes {
        source: Source::Snapshot(snapshot.clone()),
        count: 1,
        partial: false,
        ttl: Some(Duration::from_secs(new.timeout)),
        on_expiry: if new.auto_pause { OnExpiry::Pause } else { OnExpiry::End },
        wake_on_traffic: new.auto_resume,
        metadata: new.metadata.clone(),
        about: new.about.clone().kept(),
        env: new.env.clone(),
        account: Some(Account::e2b()),
        network: NetworkOrder { egress, ..NetworkOrder::default() },
        limits: WantedLimits::default(),
        counted: false,
        owner: Some(app.owner(caller, app.project_for(caller, &view))),
    }
}

/// What a body asks for.
#[derive(Debug)]
struct SandboxRequest {
    about: About,
    timeout: u64,
    auto_pause: bool,
    auto_resume: bool,
    metadata: std::collections::BTreeMap<String, String>,
    env: std::collections::BTreeMap<String, String>,
    egress: Option<forkd_net::Egress>,
}

fn convert(wanted: NewSandbox) -> Answer<SandboxRequest> {
    if wanted.template_id.is_empty() {
        return Err(malformed("templateID is missing"));
    }
    let said = |value: &Option<Value>| !matches!(value, None | Some(Value::Null));
    for (name, said) in [
        ("mcp", said(&wanted.mcp)),
        ("iam", said(&wanted.iam)),
        ("volumeMounts", wanted.volume_mounts.is_some_and(|mounts| !mounts.is_empty())),
    ] {
        if said {
            return Err(malformed(format!("{name} is not supported by forkd")));
        }
    }
    let network = wanted.network.unwrap_or_default();
    let (metadata, env) = (wanted.metadata.unwrap_or_default(), wanted.env_vars.unwrap_or_default());
    checks::metadata(&metadata)?;
    checks::env(&env)?;
    let egress = network.egress(wanted.allow_internet_access.or(network.allow_internet_access))?;
    let about = About {
        template: Some(wanted.template_id),
        secure: wanted.secure.unwrap_or(true),
        public_traffic: network.allow_public_traffic.unwrap_or(true),
        mask_host: network.mask_request_host,
    };
    let auto_pause = wanted.auto_pause.unwrap_or(false);
    let auto_resume = wanted.auto_resume.is_some_and(|resume| resume.enabled);
    let timeout = time("timeout", wanted.timeout, TIMEOUT)?;
    Ok(SandboxRequest { about, timeout, auto_pause, auto_resume, metadata, env, egress })
}

pub(super) async fn get(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Answer<Json<SandboxDetail>> {
    let may_use = caller.require(Scope::Run).is_ok();
    Ok(Json(SandboxDetail::of(&find(&app, &caller, &id)?.view(), &app.e2b.keys, domain(&headers), may_use)))
}

pub(super) async fn kill(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    find(&app, &caller, &id)?.remove().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Replaces what it may reach: what is not said is as it is for a new one.
pub(super) async fn set_network(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Body(wanted): Body<Network>,
) -> Answer<StatusCode> {
    let sandbox = find(&app, &caller, &id)?;
    let egress = wanted.egress(wanted.allow_internet_access)?.unwrap_or_default();
    let unconnected = sandbox.view().record.network.is_none();
    if unconnected && egress == forkd_net::Egress::Deny {
        return Ok(StatusCode::NO_CONTENT);
    }
    sandbox.change_network(NetworkChange::Egress(egress)).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert_json(json: &str) -> Answer<SandboxRequest> {
        convert(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn what_is_not_said_has_e2b_s_default() {
        let wanted = convert_json(r#"{"templateID": "base"}"#).unwrap();
        assert_eq!((wanted.timeout, wanted.auto_pause, wanted.egress), (300, false, None));
        assert!(wanted.about.secure && wanted.about.public_traffic && !wanted.auto_resume);
    }

    #[test]
    fn what_makes_no_sense_or_cannot_be_kept_is_refused_with_words() {
        for (json, says) in [
            ("{}", "templateID is missing"),
            (r#"{"templateID": "x", "timeout": 99999999999}"#, "timeout is"),
            (r#"{"templateID": "x", "mcp": {}}"#, "mcp is not supported"),
            (r#"{"templateID": "x", "iam": {"tokens": {}}}"#, "iam is not supported"),
            (r#"{"templateID": "x", "volumeMounts": [{}]}"#, "volumeMounts is not supported"),
            (r#"{"templateID": "x", "metadata": {"": "x"}}"#, "metadata has"),
            (r#"{"templateID": "x", "envVars": {"A=": "x"}}"#, "env has"),
            (r#"{"templateID": "x", "network": {"rules": {"a": []}}}"#, "network.rules"),
        ] {
            let error = convert_json(json).unwrap_err();
            assert_eq!(error.code().status(), 400, "{json}");
            assert!(error.to_string().contains(says), "{json}: {error}");
        }
    }
}
