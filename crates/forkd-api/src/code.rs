//! Code for a guest's interpreters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A language of a guest's interpreters. The image determines which are available: TypeScript needs Node.js 22.13 or newer, Java a
/// JDK.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    Python,
    Javascript,
    Typescript,
    Bash,
    R,
    Java,
}

impl Language {
    pub const ALL: [Language; 6] = [
        Language::Python,
        Language::Javascript,
        Language::Typescript,
        Language::Bash,
        Language::R,
        Language::Java,
    ];

    /// By its name.
    pub fn named(name: &str) -> Option<Language> {
        Language::ALL.into_iter().find(|language| language.name() == name)
    }

    /// Its name on the wire, and in guests.
    pub fn name(self) -> &'static str {
        match self {
            Language::Python => "python",
            Language::Javascript => "javascript",
            Language::Typescript => "typescript",
            Language::Bash => "bash",
            Language::R => "r",
            Language::Java => "java",
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
    /// The context to use [default: the language's default one].
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

/// The result of code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Evaluated {
    /// The value of the last expression, as text.
    pub result: Option<String>,
    /// Everything that was displayed, by MIME type, including the last expression.
    pub results: Vec<BTreeMap<String, String>>,
    pub stdout: String,
    pub stderr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<EvalError>,
    /// Whether it was interrupted because it timed out. The output until then is included.
    #[serde(default)]
    pub timed_out: bool,
    /// Whether output was cut because it did not fit into the response.
    pub truncated: bool,
}

/// A line of the streamed response (`Accept: application/x-ndjson`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvalEvent {
    Stdout(String),
    Stderr(String),
    Result(Displayed),
    /// The code raised an error. `ended` follows.
    Raised(EvalError),
    /// The last line.
    Ended {
        /// Whether it was interrupted because it timed out.
        timed_out: bool,
        /// Whether output was cut because it was too large.
        truncated: bool,
    },
    /// The last line: the stream failed before the end.
    Error(crate::error::ErrorBody),
}

impl EvalEvent {
    /// Whether nothing follows it.
    pub fn is_last(&self) -> bool {
        matches!(self, EvalEvent::Ended { .. } | EvalEvent::Error(_))
    }
}

/// A value that was displayed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Displayed {
    /// The value in each of its MIME types. Binary data is in base64.
    pub data: BTreeMap<String, String>,
    /// Whether it is the value of the last expression.
    pub main: bool,
}

/// An error raised by the code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

/// An interpreter with its state, which code in it shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeContext {
    pub id: String,
    /// The language's name, as in Eval; other agents may have other languages.
    pub language: String,
    pub cwd: String,
    /// Whether code is running in it.
    pub busy: bool,
}

/// Makes a context and starts its interpreter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateCodeContext {
    #[serde(default)]
    pub language: Language,
    /// The working directory [default: the user's home directory].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Interrupts the code that runs in a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// Seconds to wait for the code to end. If it is still running then, its interpreter is restarted.
    #[serde(default = "five")]
    #[schema(maximum = 300, default = 5)]
    pub grace_secs: u64,
}

fn five() -> u64 {
    5
}

impl Default for Interrupt {
    fn default() -> Interrupt {
        Interrupt { grace_secs: five() }
    }
}

/// The result of an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interrupted {
    /// Whether the code did not end in time, so that the interpreter was restarted and lost its variables.
    pub restarted: bool,
}
