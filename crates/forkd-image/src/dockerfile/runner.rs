//! The two sides of a build: what is asked for, and who does it.

use std::collections::BTreeMap;

use forkd_source::context::{Context, ContextError, Item};
use serde::Serialize;

use super::Base;
use super::words::WordError;
use crate::digest::Digest;
use crate::images::Config;

/// Who does what a build asks for. Disks are values: a step takes one and returns the next.
pub trait Runner {
    type Disk;
    type Error: std::error::Error;

    /// The disk that a stage begins with, the configuration of its image, and the image's id.
    fn base(&mut self, base: &Base) -> Result<(Self::Disk, Config, Digest), Self::Error>;
    /// The disk that was kept under a key.
    fn cached(&mut self, key: Digest) -> Result<Option<Self::Disk>, Self::Error>;
    /// Keeps a copy of a disk under a key. It may be put off: code that needs the disk under its key settles it first.
    fn keep(&mut self, key: Digest, disk: &Self::Disk) -> Result<(), Self::Error>;
    /// Ends what a disk is in the middle of, and keeps it under its key: a stage is done.
    fn settle(&mut self, key: Digest, disk: Self::Disk) -> Result<Self::Disk, Self::Error>;
    /// Runs a command.
    fn run(&mut self, disk: Self::Disk, step: &RunStep) -> Result<Self::Disk, Self::Error>;
    /// Places files of the context.
    fn copy(
        &mut self,
        disk: Self::Disk,
        context: &Context,
        step: &CopyStep,
    ) -> Result<Self::Disk, Self::Error>;
    /// Places files of another disk.
    fn copy_from(
        &mut self,
        disk: Self::Disk,
        from: &Self::Disk,
        step: &CopyFromStep,
    ) -> Result<Self::Disk, Self::Error>;
    /// Makes a directory and those above it, where they are missing: root's, unless there is an owner.
    fn make_directory(
        &mut self,
        disk: Self::Disk,
        path: &str,
        owner: Option<&str>,
    ) -> Result<Self::Disk, Self::Error>;
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunStep {
    pub arguments: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub user: Option<String>,
    pub workdir: String,
}

/// Files of the context to place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyStep {
    pub items: Vec<Item>,
    /// Names or numbers, as the image knows them; root if empty.
    pub owner: Option<String>,
    /// For all files, instead of their own.
    pub mode: Option<u32>,
}

/// Files of another disk to place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopyFromStep {
    /// Absolute; with patterns.
    pub sources: Vec<String>,
    /// Absolute; a directory if it ends with a slash.
    pub destination: String,
    pub owner: Option<String>,
    pub mode: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum BuildError<E: std::error::Error + 'static> {
    #[error("line {line}")]
    Word { line: usize, source: WordError },
    #[error("line {line}: {problem}")]
    Wrong { line: usize, problem: String },
    #[error("line {line}")]
    Context { line: usize, source: ContextError },
    #[error("line {line}")]
    Runner { line: usize, source: E },
    #[error("there is no stage {0:?}")]
    NoStage(String),
    #[error("the build argument {0:?} is not declared by any ARG")]
    UnknownArgument(String),
    #[error("cancelled")]
    Cancelled,
}

/// What the user chose.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Values for `ARG`s.
    pub arguments: BTreeMap<String, String>,
    /// A stage to end with; without one, the last.
    pub target: Option<String>,
    /// Whether directories that `WORKDIR` makes belong to the user at that point, as E2B has it. Docker's are root's.
    pub owns_workdir: bool,
}

/// What came out.
#[derive(Debug)]
pub struct Built<D> {
    pub disk: D,
    pub config: Config,
    /// Stands for all that went into the disk.
    pub key: Digest,
}
