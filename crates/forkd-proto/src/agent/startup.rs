//! What the host says about the image, and what the agent tells of its start. Generation 1: the files under `protocol/gen-1`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::account::Account;

const DEFAULT_TIMEOUT_MS: u64 = 60_000;

/// `POST /forkd/config`: once, at the first boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigRequest {
    pub version: u32,
    /// The image's environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The user of commands that name no user. `root` without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Made before anything of the image is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// Without one, a guest is ready at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Ready>,
}

/// A program that runs for as long as it likes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub command: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
}

/// When the guest is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub probe: Probe,
    #[serde(default = "default_timeout")]
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// When this command ends with status 0. It is run again and again.
    Command(Vec<String>),
    /// When a process listens on this port of the loopback.
    Port(u16),
}

/// `GET /forkd/ready?wait_ms=`: waits for as long while the guest starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyResponse {
    pub version: u32,
    pub state: StartupState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StartupState {
    /// Nothing is known about the image yet.
    Unconfigured,
    Starting,
    Ready,
    Failed,
}

fn default_timeout() -> u64 {
    DEFAULT_TIMEOUT_MS
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::Value;

    use super::*;

    fn same<T: Serialize + DeserializeOwned>(text: &str) -> T {
        let message: T = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&message).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        message
    }

    /// The old files must mean the same for ever: they are what agents in old snapshots and old hosts say.
    #[test]
    fn messages_of_generation_1_are_understood() {
        let config: ConfigRequest = same(include_str!("../../protocol/gen-1/config-request.json"));
        assert_eq!(config.ready.unwrap().probe, Probe::Port(8080));
        let config: ConfigRequest = same(include_str!("../../protocol/gen-1/config-request-command.json"));
        assert!(matches!(config.ready.unwrap().probe, Probe::Command(words) if words.len() == 3));
        let ready: ReadyResponse = same(include_str!("../../protocol/gen-1/ready-response.json"));
        assert_eq!(ready.state, StartupState::Failed);
    }
}
