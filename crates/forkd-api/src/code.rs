//! Code for a guest's interpreters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A language of a guest's interpreters. Which ones there are is up to the image: TypeScript needs Node.js 22.13 or newer, Java a JDK.
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
    /// Whether it was interrupted because its time was over. What it printed and displayed until then is here.
    #[serde(default)]
    pub timed_out: bool,
    /// Whether there was more output than an answer holds.
    pub truncated: bool,
}

/// A line of the stream that is the answer when `application/x-ndjson` is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvalEvent {
    Stdout(String),
    Stderr(String),
    Result(Displayed),
    /// The code has failed. `ended` follows.
    Raised(EvalError),
    /// The last line.
    Ended {
        /// Whether it was interrupted because its time was over.
        timed_out: bool,
        /// Whether something was too large to be sent.
        truncated: bool,
    },
    /// The last line: it could not be followed to its end.
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
    /// The same value in each of its MIME types. What is binary is in base64.
    pub data: BTreeMap<String, String>,
    /// Whether it is the value of the last expression.
    pub main: bool,
}

/// The code has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EvalError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

/// An interpreter with its state: what code has defined in it, other code in it finds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeContext {
    pub id: String,
    /// The language's name, as in Eval; a guest with another agent may have others.
    pub language: String,
    pub cwd: String,
    /// Whether code runs in it.
    pub busy: bool,
}

/// Makes a context, and starts its interpreter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateCodeContext {
    #[serde(default)]
    pub language: Language,
    /// Where its code begins. Without it, the user's directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Interrupts the code that runs in a context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Interrupt {
    /// What the code gets to end in. Code that still runs then is ended with its interpreter, and a new one is started.
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

/// What became of an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Interrupted {
    /// Whether the code did not end in time. The context has a new interpreter then, without the variables of the old one.
    pub restarted: bool,
}
