//! Tokens: who may do what over TCP.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a token allows. Each scope has all of those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// To look at everything.
    Read,
    /// To make sandboxes and snapshots, to run things in them, and to remove them.
    Run,
    /// All else: images, kernels, and what is the host's.
    Admin,
}

impl Scope {
    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Run => "run",
            Scope::Admin => "admin",
        }
    }
}

/// What is known of a token. Its secret is not: only who made it has seen it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    pub name: String,
    pub scope: Scope,
    pub created_at_unix: u64,
    /// What its sandboxes may be together.
    #[serde(default, skip_serializing_if = "TokenLimits::is_nothing")]
    pub limits: TokenLimits,
    /// Behind the truth by a minute at most; nothing if it was never used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at_unix: Option<u64>,
}

/// What the sandboxes of a token may be at once, together. What is not said is as much as the host gives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenLimits {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u64>,
    /// Of their guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
}

impl TokenLimits {
    fn is_nothing(&self) -> bool {
        *self == TokenLimits::default()
    }
}
