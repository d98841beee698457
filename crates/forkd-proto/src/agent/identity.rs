//! What the host says after a fork, and what the agent answers. Generation 1: the files under `protocol/gen-1`.
//!
//! An agent that listens at [`IDENTITY_PORT`](super::IDENTITY_PORT) is told there, in lines of JSON: it says its version, the host
//! answers with an [`IdentityRequest`] and the time at that moment, and the agent with an [`IdentityResponse`], or with `error`. All
//! others are told by HTTP.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Network;
use super::account::Account;

/// The longest line at that port.
pub const MAX_LINE: u64 = 1 << 20;

/// `POST /forkd/identity`. What is not there stays as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityRequest {
    pub version: u32,
    /// Grows with every fork. A request that repeats the last one is answered from memory; an older one is refused.
    pub generation: u64,
    pub id: String,
    /// Which of the children of one call.
    #[serde(default)]
    pub index: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_time_ns: Option<u64>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// For a guest that was not told of one yet. Agents that do not know it go without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// Base64 of 64 bytes or more that no other sandbox gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<String>,
    /// Whether this guest is a copy of another one: then inherited connections are destroyed, and SSH host keys are made anew for
    /// another `id`. A host that asks for it knows the steps `connections`, `host_keys` and `thaw`. Agents that do not know it
    /// go without.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub renew: bool,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdentityResponse {
    pub version: u32,
    pub generation: u64,
    /// Whether every step was done or had no need to be.
    pub ok: bool,
    pub steps: Vec<Step>,
    /// The interpreter contexts in which code was running. They have new random numbers; their hooks and environment follow when
    /// the code has ended. Agents that do not say this call it a failure of the step `interpreters`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<Vec<String>>,
    /// The interpreter contexts that rest, and take the identity with their next code. Some agents do not say this.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resting: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub step: StepName,
    pub ok: bool,
    /// Left out: because this agent is not a guest's PID 1, and the host is not its to change, or because the guest has no way
    /// to do it. Then `error` says what it lacks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long it took, in agents that say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
}

/// `POST /forkd/close`: no request is served before the next identity or `POST /forkd/open`, and the guest's programs are frozen.
/// Agents that cannot freeze answer without a body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloseResponse {
    pub version: u32,
    /// Whether all programs stand still.
    pub frozen: bool,
    /// Why they do not. Those that could be frozen are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// In the order in which they are done. Interpreters come before `host_keys` if nothing was frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepName {
    Clock,
    Entropy,
    Hostname,
    MachineId,
    Account,
    Settings,
    Network,
    Connections,
    HostKeys,
    Thaw,
    Interpreters,
    Hooks,
}

impl StepName {
    pub fn name(self) -> &'static str {
        match self {
            StepName::Clock => "clock",
            StepName::Entropy => "entropy",
            StepName::Hostname => "hostname",
            StepName::MachineId => "machine_id",
            StepName::Account => "account",
            StepName::Settings => "settings",
            StepName::Network => "network",
            StepName::Connections => "connections",
            StepName::HostKeys => "host_keys",
            StepName::Thaw => "thaw",
            StepName::Interpreters => "interpreters",
            StepName::Hooks => "hooks",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::agent::VERSION;

    /// The old files must mean the same for ever: they are what agents in old snapshots and old hosts say.
    #[test]
    fn messages_of_generation_1_are_understood() {
        let text = include_str!("../../protocol/gen-1/identity-request.json");
        let request: IdentityRequest = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&request).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        let text = include_str!("../../protocol/gen-1/identity-response.json");
        let response: IdentityResponse = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&response).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        assert_eq!((request.version, response.version, response.busy), (VERSION, VERSION, None));
        let text = include_str!("../../protocol/gen-1/identity-response-busy.json");
        let response: IdentityResponse = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&response).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        assert_eq!(response.busy, Some(vec!["default".to_owned()]));
    }

    #[test]
    fn messages_about_copies_are_understood() {
        let text = include_str!("../../protocol/gen-1/identity-request-renew.json");
        let request: IdentityRequest = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&request).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        assert!(request.renew);
        let text = include_str!("../../protocol/gen-1/identity-response-renew.json");
        let response: IdentityResponse = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(&response).unwrap(), serde_json::from_str::<Value>(text).unwrap());
        for text in [
            include_str!("../../protocol/gen-1/close-response.json"),
            include_str!("../../protocol/gen-1/close-response-late.json"),
        ] {
            let response: CloseResponse = serde_json::from_str(text).unwrap();
            let again = serde_json::to_value(&response).unwrap();
            assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
            assert_eq!(response.frozen, response.problem.is_none());
        }
    }

    #[test]
    fn little_is_needed_and_what_is_unknown_is_passed_over() {
        let text = include_str!("../../protocol/gen-1/identity-request-small.json");
        let request: IdentityRequest = serde_json::from_str(text).unwrap();
        assert_eq!((request.generation, request.index, request.network), (1, 0, None));
    }
}
