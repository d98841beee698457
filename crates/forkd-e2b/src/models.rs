//! What E2B's clients send and get. What is not known is ignored, as they expect.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use axum::extract::{FromRequest, Request};
use forkd_engine::{SandboxState, SandboxView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::about::About;
use super::keys::{Keys, Purpose};
use super::network::{self, Network, ShownNetwork};
use super::series::Point;
use crate::App;
use forkd_daemon::error::ApiError;
use forkd_daemon::extract;
use forkd_daemon::operations::checks::malformed;

/// Every sandbox is on this one node.
const CLIENT: &str = "forkd";
/// When a sandbox ends that has no end of its own.
const NEVER: &str = "9999-12-31T23:59:59.000Z";

/// A new sandbox.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct NewSandbox {
    #[serde(rename = "templateID")]
    pub template_id: String,
    pub timeout: Option<u64>,
    pub metadata: Option<BTreeMap<String, String>>,
    pub env_vars: Option<BTreeMap<String, String>>,
    pub auto_pause: Option<bool>,
    pub auto_pause_memory: Option<bool>,
    pub auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    pub allow_internet_access: Option<bool>,
    pub network: Option<Network>,
    /// Only in bodies of older clients.
    pub secure: Option<bool>,
    pub mcp: Option<Value>,
    pub iam: Option<Value>,
    pub volume_mounts: Option<Vec<Value>>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct AutoResume {
    pub enabled: bool,
}

/// A running sandbox is to run longer, a paused one to go on.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Connect {
    pub timeout: Option<u64>,
    pub memory: Option<bool>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct SetTimeout {
    pub timeout: Option<u64>,
}

/// As old clients ask for more time.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Refresh {
    pub duration: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub(super) struct Fork {
    pub timeout: Option<u64>,
    pub count: Option<u32>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct NewSnapshot {
    pub name: Option<String>,
}

/// A sandbox, to whoever has made or woken it.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    envd_version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    traffic_access_token: Option<String>,
    domain: Option<String>,
}

/// One of several forks.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Forked {
    Sandbox(Sandbox),
    Error(super::error::Body),
}

/// What is known of a sandbox.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxDetail {
    #[serde(flatten)]
    listed: ListedSandbox,
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    domain: Option<String>,
    allow_internet_access: bool,
    network: ShownNetwork,
    lifecycle: Lifecycle,
}

/// The same in a list.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedSandbox {
    #[serde(rename = "templateID")]
    template_id: String,
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    #[serde(rename = "clientID")]
    client_id: &'static str,
    started_at: String,
    end_at: String,
    envd_version: &'static str,
    cpu_count: u8,
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    state: &'static str,
    metadata: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Lifecycle {
    auto_resume: bool,
    on_timeout: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Snapshot {
    #[serde(rename = "snapshotID")]
    pub snapshot_id: String,
    pub names: Vec<String>,
}

/// What a guest uses.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metric {
    pub timestamp: String,
    pub timestamp_unix: u64,
    pub cpu_count: u64,
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

impl Metric {
    pub fn of(point: &Point) -> Metric {
        Metric {
            timestamp: date(point.unix.saturating_mul(1000)),
            timestamp_unix: point.unix,
            cpu_count: point.cpu_count,
            cpu_used_pct: point.cpu_used_pct,
            mem_used: point.mem_used,
            mem_total: point.mem_total,
            mem_cache: point.mem_cache,
            disk_used: point.disk_used,
            disk_total: point.disk_total,
        }
    }
}

impl Sandbox {
    pub fn of(view: &SandboxView, keys: &Keys, domain: Option<String>) -> Sandbox {
        let (about, id) = (About::of(&view.record), view.record.id.to_string());
        Sandbox {
            template_id: template(view, &about),
            client_id: CLIENT,
            envd_version: forkd_envd::VERSION,
            envd_access_token: about.secure.then(|| keys.token(Purpose::Access, &id)),
            // With it, clients reach the interpreter's contexts.
            traffic_access_token: (!about.public_traffic || about.secure)
                .then(|| keys.token(Purpose::Traffic, &id)),
            sandbox_id: id,
            domain,
        }
    }
}

impl SandboxDetail {
    /// Those who may only look get no token.
    pub fn of(view: &SandboxView, keys: &Keys, domain: Option<String>, may_use: bool) -> SandboxDetail {
        let about = About::of(&view.record);
        let policy = view.record.network.as_ref().map(|network| &network.policy.egress);
        let reaches = policy.is_some_and(|egress| *egress != forkd_net::Egress::Deny);
        SandboxDetail {
            listed: ListedSandbox::of(view),
            envd_access_token: (about.secure && may_use)
                .then(|| keys.token(Purpose::Access, view.record.id.as_str())),
            domain,
            allow_internet_access: reaches,
            network: network::show(policy, about.public_traffic, about.mask_host),
            lifecycle: Lifecycle {
                auto_resume: view.record.wake.is_some(),
                on_timeout: if view.record.pauses_at_expiry { "pause" } else { "kill" },
            },
        }
    }
}

impl ListedSandbox {
    pub fn of(view: &SandboxView) -> ListedSandbox {
        let record = &view.record;
        ListedSandbox {
            template_id: template(view, &About::of(record)),
            sandbox_id: record.id.to_string(),
            client_id: CLIENT,
            started_at: date(record.created_unix_ms),
            end_at: record.expires_unix_ms.map_or_else(|| NEVER.to_owned(), date),
            envd_version: forkd_envd::VERSION,
            cpu_count: record.shape.vcpus,
            memory_mb: record.shape.memory_bytes >> 20,
            disk_size_mb: record.shape.devices.root_disk().map_or(0, |disk| disk.limit_bytes >> 20),
            state: state(view.state),
            metadata: record.metadata.clone(),
        }
    }
}

/// The template of a sandbox, by the name that it was asked for by.
pub(super) fn template(view: &SandboxView, about: &About) -> String {
    about.template.clone().unwrap_or_else(|| view.record.snapshot.to_string())
}

fn state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Paused => "paused",
        SandboxState::Starting | SandboxState::Running | SandboxState::Ended => "running",
    }
}

/// A time as clients read it.
pub(super) fn date(unix_ms: u64) -> String {
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(unix_ms));
    match time {
        // What is beyond cannot be written, and is never.
        Some(time) if unix_ms < 253_402_300_799_000 => humantime::format_rfc3339_millis(time).to_string(),
        _ => NEVER.to_owned(),
    }
}

/// A JSON body. Clients leave it out where nothing in it is needed.
#[derive(Debug)]
pub(super) struct Body<T>(pub T);

impl<T: DeserializeOwned + Default> FromRequest<App> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Body<T>, ApiError> {
        let bytes = extract::read(request.into_body(), app.limits.json_bytes, app.limits.body_time).await?;
        if bytes.trim_ascii().is_empty() {
            return Ok(Body(T::default()));
        }
        let value = serde_json::from_slice(&bytes);
        value.map(Body).map_err(|error| malformed(format!("invalid request body: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_of_a_client_is_read() {
        let body = r#"{"templateID": "code-interpreter-v1", "timeout": 120, "metadata": {"a": "b"}, "envVars": {"X": "1"},
            "autoPause": true, "autoResume": {"enabled": true}, "allow_internet_access": false, "unknown": [1],
            "network": {"allowPublicTraffic": false, "maskRequestHost": "localhost:${PORT}"}, "secure": null}"#;
        let new: NewSandbox = serde_json::from_str(body).unwrap();
        assert_eq!((new.template_id.as_str(), new.timeout), ("code-interpreter-v1", Some(120)));
        assert_eq!(new.env_vars.unwrap()["X"], "1");
        assert!(new.auto_resume.unwrap().enabled && new.auto_pause == Some(true));
        assert_eq!((new.allow_internet_access, new.secure), (Some(false), None));
        assert_eq!(new.network.unwrap().allow_public_traffic, Some(false));
    }

    #[test]
    fn dates_are_dates() {
        assert_eq!(date(1_767_323_045_678), "2026-01-02T03:04:05.678Z");
        assert_eq!(date(u64::MAX), NEVER);
    }
}
