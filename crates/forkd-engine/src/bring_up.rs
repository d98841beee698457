//! From an agent that answers to a guest that is ready: the image's configuration, its start, its first identity.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::agent::{Agent, AgentError};
use crate::identity::{Identity, give};

/// What an image says about how its processes are started.
#[derive(Debug, Clone, Default)]
pub struct ImageConfig {
    pub env: std::collections::BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: Option<String>,
    /// A program that runs beside the agent.
    pub start: Option<Vec<String>>,
    /// When the guest is ready; without one, it is at once.
    pub ready: Option<ReadyProbe>,
}

/// When a guest is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyProbe {
    pub probe: Probe,
    pub timeout: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Probe {
    /// Somebody listens on this port.
    Port(u16),
    /// This command ends with 0.
    Command(Vec<String>),
}

/// One call takes no longer, beside those that wait.
const CALL: Duration = Duration::from_secs(30);
/// How long one question whether the guest is ready waits for a change.
const WAIT_MS: u64 = 10_000;
const VERSION: u32 = 1;

#[derive(Debug, Deserialize)]
struct Ready {
    state: String,
    detail: Option<String>,
}

/// Tells the agent what image it is in, waits until the guest is ready, and gives it its identity.
pub async fn bring_up(
    agent: &Agent,
    config: &ImageConfig,
    hostname: &str,
    limit: Duration,
) -> Result<(), AgentError> {
    let start = config.start.as_ref().map(|command| json!({ "command": command }));
    let mut request = json!({ "version": VERSION, "env": config.env });
    for (name, value) in [
        ("user", config.user.as_ref().map(|user| json!(user))),
        ("workdir", config.workdir.as_ref().map(|workdir| json!(workdir))),
        ("start", start),
        ("ready", config.ready.as_ref().map(ready)),
    ] {
        if let Some(value) = value {
            request[name] = value;
        }
    }
    agent.post::<Value>("/forkd/config", &request, CALL).await?;
    wait_until_ready(agent, limit).await?;
    let identity = Identity {
        generation: 1,
        id: hostname.into(),
        hostname: Some(hostname.into()),
        ..Identity::default()
    };
    give(agent, &identity, CALL).await
}

fn ready(ready: &ReadyProbe) -> Value {
    let probe = match &ready.probe {
        Probe::Port(port) => json!({ "port": port }),
        Probe::Command(command) => json!({ "command": command }),
    };
    json!({ "probe": probe, "timeout_ms": u64::try_from(ready.timeout.as_millis()).unwrap_or(u64::MAX) })
}

async fn wait_until_ready(agent: &Agent, limit: Duration) -> Result<(), AgentError> {
    let begun = tokio::time::Instant::now();
    loop {
        let path = format!("/forkd/ready?wait_ms={WAIT_MS}");
        let answer: Ready = agent.get(&path, CALL + Duration::from_millis(WAIT_MS)).await?;
        match answer.state.as_str() {
            "ready" => return Ok(()),
            "failed" => return Err(AgentError::NotReady(answer.detail.unwrap_or_default())),
            _ if begun.elapsed() > limit => return Err(AgentError::Timeout(limit)),
            _ => {}
        }
    }
}
