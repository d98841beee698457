//! Commands in a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::code::thirty;

/// Runs a program and waits for its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program and its arguments.
    #[schema(min_items = 1)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Without one, the image's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// What the program reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    #[serde(default = "thirty")]
    #[schema(minimum = 1, maximum = 86400, default = 30)]
    pub timeout_secs: u64,
}

/// How a program has ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Executed {
    /// What is not UTF-8 is replaced; the stream has it exactly.
    pub stdout: String,
    pub stderr: String,
    /// 128 and the signal's number if a signal has ended it.
    pub exit_code: i32,
    /// Whether it was ended because its time was over.
    pub timed_out: bool,
    /// Whether there was more output than an answer holds.
    pub truncated: bool,
}

/// A line of the stream that is the answer when `application/x-ndjson` is accepted. Bytes are in base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExecEvent {
    Started {
        pid: u32,
    },
    Stdout(String),
    Stderr(String),
    /// The last line: it has ended.
    Exited {
        exit_code: i32,
        timed_out: bool,
    },
    /// The last line: it could not be followed to its end.
    Error(crate::error::ErrorBody),
}
