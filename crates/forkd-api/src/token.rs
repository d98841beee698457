//! Tokens: who may do what over TCP.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The default project.
pub const DEFAULT_PROJECT: &str = "default";

/// What a token allows. Each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read access to its project.
    Read,
    /// Creating, using and removing sandboxes and snapshots.
    Run,
    /// Everything else: images, kernels, the host, and every project.
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
    /// Whose sandboxes, snapshots and images it is for.
    #[serde(default = "default_project")]
    pub project: String,
    pub created_at_unix: u64,
    /// What is made with it may be so much together.
    #[serde(default, skip_serializing_if = "TokenLimits::is_nothing")]
    pub limits: TokenLimits,
    /// Behind the truth by a minute at most; nothing if it was never used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_used_at_unix: Option<u64>,
}

/// The caller of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Caller {
    /// `token:NAME`, `unix:UID`, or `local` for a caller on the loopback without a token.
    pub name: String,
    pub scope: Scope,
    /// The project of the objects it creates.
    pub project: String,
    /// The limits on the objects it creates.
    #[serde(default, skip_serializing_if = "TokenLimits::is_nothing")]
    pub limits: TokenLimits,
}

pub(crate) fn default_project() -> String {
    DEFAULT_PROJECT.to_owned()
}

/// A project that has limits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Project {
    pub name: String,
    /// What all of its tokens make may be so much together.
    pub limits: TokenLimits,
}

/// Limits on what a token or a project uses in total [default: unlimited].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenLimits {
    /// The number of sandboxes, including guests that make snapshots and images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxes: Option<u64>,
    /// Memory of their guests and of their branches, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vcpus: Option<u64>,
    /// The number of snapshots, including branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<u64>,
    /// Disk space of their snapshots in MiB, without what they share with those they are based on. A snapshot that is being made
    /// may exceed it; the next one is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_mib: Option<u64>,
}

impl TokenLimits {
    pub fn is_nothing(&self) -> bool {
        *self == TokenLimits::default()
    }
}
