//! `forkd.toml`: what a parent needs beyond its image.
//!
//! ```toml
//! vcpus = 2
//! memory = "1G"              # a bare number is MiB
//! disk = "8G"
//! start = "python3 server.py" # or ["python3", "server.py"]
//!
//! [ready]                    # one of: port, command
//! port = 8080
//! timeout_seconds = 60
//!
//! [warmup]                   # run before the parent is frozen: python, javascript, typescript, bash, r, java
//! python = "import numpy"
//! ```
//!
//! Chains of snapshots, and images that they are made of, are in the same file (`chain.rs`, `image_table.rs`).

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

/// The file's name, beside the Dockerfile.
pub const FILE: &str = crate::context::RECIPE;

const STORED_VERSION: u32 = 1;
pub(crate) const MAX_FILE: u64 = 1 << 20;
/// What a VM can have.
const MAX_VCPUS: u32 = 32;
pub(crate) const MIN_MEMORY_MIB: u64 = 64;
pub(crate) const MAX_MEMORY_MIB: u64 = 1 << 20;
const MAX_TIMEOUT_SECONDS: u64 = 3600;

#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot parse {}: {message}", path.display())]
    Syntax { path: PathBuf, message: String },
    #[error("{}: {field}: {problem}", path.display())]
    Wrong { path: PathBuf, field: &'static str, problem: String },
}

/// What a parent needs. The starter decides what it does not say. An image keeps it in its metadata.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Stored", into = "Stored")]
pub struct Recipe {
    pub vcpus: Option<u32>,
    pub memory_mib: Option<u64>,
    pub disk_mib: Option<u64>,
    /// The start command, as arguments.
    pub start: Option<Vec<String>>,
    pub user: Option<String>,
    pub ready: Option<Ready>,
    pub warm_up: BTreeMap<Language, String>,
}

/// When a parent is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub probe: Probe,
    pub timeout_seconds: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Probe {
    /// Something listens on this TCP port.
    Port(u16),
    /// A command ends with 0.
    Command(Vec<String>),
}

/// The languages of warm contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
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

    /// As the interpreter knows it.
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

/// A recipe in an image's metadata. The version is looked at before the rest means anything.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    #[serde(default)]
    vcpus: Option<u32>,
    #[serde(default)]
    memory_mib: Option<u64>,
    #[serde(default)]
    disk_mib: Option<u64>,
    #[serde(default)]
    start: Option<Vec<String>>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    ready: Option<Ready>,
    #[serde(default)]
    warm_up: BTreeMap<Language, String>,
}

#[derive(Debug, thiserror::Error)]
#[error("unsupported recipe version {0}, expected {STORED_VERSION}")]
struct UnknownVersion(u32);

impl TryFrom<Stored> for Recipe {
    type Error = UnknownVersion;

    fn try_from(stored: Stored) -> Result<Recipe, UnknownVersion> {
        let Stored { version, vcpus, memory_mib, disk_mib, start, user, ready, warm_up } = stored;
        match version {
            STORED_VERSION => Ok(Recipe { vcpus, memory_mib, disk_mib, start, user, ready, warm_up }),
            version => Err(UnknownVersion(version)),
        }
    }
}

impl From<Recipe> for Stored {
    fn from(recipe: Recipe) -> Stored {
        let Recipe { vcpus, memory_mib, disk_mib, start, user, ready, warm_up } = recipe;
        Stored { version: STORED_VERSION, vcpus, memory_mib, disk_mib, start, user, ready, warm_up }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    vcpus: Option<u32>,
    memory: Option<Size>,
    disk: Option<Size>,
    start: Option<Words>,
    user: Option<String>,
    ready: Option<ReadySection>,
    #[serde(default)]
    warmup: BTreeMap<Language, String>,
    /// Images and snapshots to be made, which are no part of an image (`chain.rs`).
    #[serde(rename = "image")]
    _image: Option<IgnoredAny>,
    #[serde(rename = "snapshot")]
    _snapshot: Option<IgnoredAny>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadySection {
    port: Option<u16>,
    command: Option<Words>,
    #[serde(default = "default_timeout")]
    timeout_seconds: u64,
}

fn default_timeout() -> u64 {
    60
}

impl ReadySection {
    /// What it says; else the field that is wrong, and what is wrong with it.
    pub fn check(self) -> Result<Ready, (&'static str, &'static str)> {
        let probe = match (self.port, self.command) {
            (Some(0), _) => return Err(("ready.port", "expected 1 to 65535")),
            (Some(port), None) => Probe::Port(port),
            (None, Some(command)) => {
                Probe::Command(command.arguments().ok_or(("ready.command", "the command is empty"))?)
            }
            _ => return Err(("ready", "give either a port or a command")),
        };
        if !(1..=MAX_TIMEOUT_SECONDS).contains(&self.timeout_seconds) {
            return Err(("ready.timeout_seconds", "expected 1 to 3600"));
        }
        Ok(Ready { probe, timeout_seconds: self.timeout_seconds })
    }
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Size {
    Mib(u64),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Words {
    Shell(String),
    Exec(Vec<String>),
}

impl Words {
    /// A text is for a shell, as in a Dockerfile.
    pub fn arguments(self) -> Option<Vec<String>> {
        match self {
            Words::Shell(text) if text.trim().is_empty() => None,
            Words::Shell(text) => Some(vec!["/bin/sh".into(), "-c".into(), text]),
            Words::Exec(words) if words.first().is_none_or(String::is_empty) => None,
            Words::Exec(words) => Some(words),
        }
    }
}

impl Recipe {
    /// Reads the file in a directory; without one, nothing is asked for.
    pub fn read(directory: &Path) -> Result<Recipe, RecipeError> {
        let path = directory.join(FILE);
        let read = || {
            if fs::metadata(&path)?.len() > MAX_FILE {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            fs::read_to_string(&path)
        };
        match read() {
            Ok(text) => Recipe::parse(&text, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Recipe::default()),
            Err(source) => Err(RecipeError::Read { path, source }),
        }
    }

    /// Parses a text; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Recipe, RecipeError> {
        let wrong =
            |field, problem: &str| RecipeError::Wrong { path: path.into(), field, problem: problem.into() };
        let document: Document = toml::from_str(text).map_err(|error| RecipeError::Syntax {
            path: path.into(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        if document.vcpus.is_some_and(|vcpus| vcpus == 0 || vcpus > MAX_VCPUS) {
            return Err(wrong("vcpus", "expected 1 to 32"));
        }
        let size = |field, size: Option<Size>| match size {
            Some(size) => mib(&size)
                .map(Some)
                .ok_or_else(|| wrong(field, "expected a size such as \"4G\" or 512 (MiB)")),
            None => Ok(None),
        };
        let memory_mib = size("memory", document.memory)?;
        if memory_mib.is_some_and(|mib| !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&mib)) {
            return Err(wrong("memory", "expected 64M to 1T"));
        }
        let start = match document.start {
            Some(start) => Some(start.arguments().ok_or_else(|| wrong("start", "the command is empty"))?),
            None => None,
        };
        let ready = match document.ready {
            Some(section) => Some(section.check().map_err(|(field, problem)| wrong(field, problem))?),
            None => None,
        };
        Ok(Recipe {
            vcpus: document.vcpus,
            memory_mib,
            disk_mib: size("disk", document.disk)?,
            start,
            user: document.user,
            ready,
            warm_up: document.warmup,
        })
    }
}

pub(crate) fn mib(size: &Size) -> Option<u64> {
    let text = match size {
        Size::Mib(mib) => return Some(*mib).filter(|mib| *mib > 0),
        Size::Text(text) => text.trim(),
    };
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let shift = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "m" | "mib" => 0,
        "g" | "gib" => 10,
        "t" | "tib" => 20,
        _ => return None,
    };
    let number: u64 = text[..digits].parse().ok()?;
    number.checked_mul(1 << shift).filter(|mib| (1..1 << 40).contains(mib))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Recipe, String> {
        Recipe::parse(text, Path::new(FILE)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_whole_recipe() {
        let recipe = parse(
            "vcpus = 2\nmemory = \"1G\"\ndisk = 8192\nstart = \"python3 server.py\"\nuser = \"app\"\n\
             [ready]\nport = 8080\n[warmup]\npython = \"import numpy\"\nbash = \"true\"\n",
        )
        .unwrap();
        assert_eq!((recipe.vcpus, recipe.memory_mib, recipe.disk_mib), (Some(2), Some(1024), Some(8192)));
        assert_eq!(recipe.start.unwrap(), ["/bin/sh", "-c", "python3 server.py"]);
        assert_eq!(recipe.ready.unwrap(), Ready { probe: Probe::Port(8080), timeout_seconds: 60 });
        assert_eq!(recipe.warm_up[&Language::Python], "import numpy");
        assert_eq!(parse("").unwrap(), Recipe::default());
        let command = parse("[ready]\ncommand = [\"test\", \"-e\", \"/x\"]\ntimeout_seconds = 5").unwrap();
        let probe = Probe::Command(vec!["test".into(), "-e".into(), "/x".into()]);
        assert_eq!(command.ready.unwrap(), Ready { probe, timeout_seconds: 5 });
    }

    #[test]
    fn mistakes_are_named() {
        for (text, message) in [
            ("cpus = 2", "unknown field `cpus`"),
            ("vcpus = 0", "forkd.toml: vcpus: expected 1 to 32"),
            ("vcpus = 33", "forkd.toml: vcpus: expected 1 to 32"),
            ("memory = \"1X\"", "forkd.toml: memory: expected a size"),
            ("memory = 1", "forkd.toml: memory: expected 64M to 1T"),
            ("start = \" \"", "forkd.toml: start: the command is empty"),
            ("start = []", "forkd.toml: start: the command is empty"),
            ("[ready]", "forkd.toml: ready: give either a port or a command"),
            ("[ready]\nport = 1\ncommand = \"x\"", "forkd.toml: ready: give either a port or a command"),
            (
                "[ready]\nport = 1\ntimeout_seconds = 0",
                "forkd.toml: ready.timeout_seconds: expected 1 to 3600",
            ),
            ("[warmup]\nruby = \"x\"", "ruby"),
            ("vcpus = ", "cannot parse"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(message), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_stored_recipe_comes_back_and_another_version_is_refused() {
        let recipe = parse("vcpus = 2\nstart = \"x\"\n[ready]\nport = 80\n[warmup]\nbash = \"y\"").unwrap();
        let text = serde_json::to_string(&recipe).unwrap();
        assert_eq!(serde_json::from_str::<Recipe>(&text).unwrap(), recipe);
        let error = serde_json::from_str::<Recipe>(&text.replace("\"version\":1", "\"version\":2"));
        assert_eq!(error.unwrap_err().to_string(), "unsupported recipe version 2, expected 1");
    }

    #[test]
    fn without_a_file_nothing_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Recipe::read(directory.path()).unwrap(), Recipe::default());
        fs::create_dir(directory.path().join(FILE)).unwrap();
        assert!(matches!(Recipe::read(directory.path()), Err(RecipeError::Read { .. })));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in ".{0,80}") {
            let _ = parse(&text);
        }
    }
}
