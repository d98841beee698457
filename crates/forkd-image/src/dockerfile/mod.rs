//! Dockerfiles: what to do, in stages, and the keys under which the results are kept.
//!
//! ```text
//! text ─▶ parse ─▶ Dockerfile ─▶ build ───────────────────────────▶ Runner
//!                  stages of     expands variables, chooses files    runs commands and places files
//!                  instructions  of the context, makes keys          on a disk
//! ```
//!
//! What is not supported is refused by its name and line, never skipped.

mod build;
mod parse;
mod runner;
#[cfg(test)]
mod tests;
mod words;

pub use build::build;
pub use forkd_source::context::{Context, ContextError, Item, ItemKind};
pub use forkd_source::ignore::{Ignore, IgnoreError};
pub use parse::{ParseError, parse};
pub use runner::{BuildError, BuildOptions, Built, CopyFromStep, CopyStep, RunStep, Runner};
pub use words::WordError;

use serde::Serialize;

/// A whole Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dockerfile {
    /// `ARG`s before the first `FROM`.
    pub arguments: Vec<Argument>,
    pub stages: Vec<Stage>,
    /// Backslash, unless a directive says otherwise.
    pub escape: char,
}

/// One `FROM` and what follows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub line: usize,
    /// The name after `AS`, in lower case.
    pub name: Option<String>,
    /// As written, with variables.
    pub from: String,
    pub instructions: Vec<Line>,
}

/// An instruction and its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub line: usize,
    pub instruction: Instruction,
}

/// `ARG NAME=default`, as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub line: usize,
    pub text: String,
}

/// What can be done. Texts are as written, with variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    Run(Command),
    Copy(Copy),
    Env(String),
    Arg(String),
    Workdir(String),
    User(String),
    Shell(Vec<String>),
    Entrypoint(Command),
    Cmd(Command),
    Label(String),
}

/// A command in one of its two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// For the shell; lines are joined.
    Shell(String),
    Exec(Vec<String>),
}

/// `COPY` and `ADD`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copy {
    /// `ADD` unpacks archives.
    pub unpacks: bool,
    /// A stage or an image instead of the context.
    pub from: Option<String>,
    pub chown: Option<String>,
    pub chmod: Option<String>,
    pub sources: Vec<String>,
    pub destination: String,
}

/// What a stage begins with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
pub enum Base {
    Scratch,
    /// Debian's suite, which needs no registry.
    Debian(String),
    /// A name of the store, or a reference to a registry.
    Image(String),
}

impl Base {
    /// What the word after `FROM` means when it is not a stage.
    pub fn parse(text: &str) -> Base {
        let suite = text
            .strip_prefix("debian:")
            .filter(|suite| !suite.is_empty() && suite.bytes().all(|byte| byte.is_ascii_lowercase()));
        match suite {
            _ if text == "scratch" => Base::Scratch,
            Some(suite) => Base::Debian(suite.into()),
            None => Base::Image(text.into()),
        }
    }
}
