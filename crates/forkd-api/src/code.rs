//! Code for a guest's interpreters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    Python,
    Javascript,
    Bash,
}

impl Language {
    /// Its name on the wire, and in guests.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Javascript => "javascript",
            Language::Bash => "bash",
        }
    }
}

/// Runs code in an interpreter that keeps its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Eval {
    pub code: String,
    #[serde(default)]
    pub language: Language,
    /// A context of its own instead of the language's default one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default = "thirty")]
    #[schema(minimum = 1, maximum = 86400, default = 30)]
    pub timeout_secs: u64,
}

pub(crate) fn thirty() -> u64 {
    30
}

/// What the code has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evaluated {
    /// The value of the last expression, as text.
    pub result: Option<String>,
    /// Everything that was displayed, by MIME type, the last expression included.
    pub results: Vec<BTreeMap<String, String>>,
    pub stdout: String,
    pub stderr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<EvalError>,
    /// Whether there was more output than an answer holds.
    pub truncated: bool,
}

/// The code has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}
