//! Projects: whose sandboxes and snapshots are whose.
//!
//! Here a project is a name on what is made: it is kept in records, and asked for where room is given and where snapshots are
//! removed. Who may see what is the daemon's to decide.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

const DEFAULT: &str = "default";
const MAX_NAME: usize = 64;

/// The name of a project. What was made before there were projects belongs to the default one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Project(String);

#[derive(Debug, thiserror::Error)]
#[error("invalid project name {0:?}: expected 1 to {MAX_NAME} letters, digits, dots, dashes and underscores")]
pub struct ProjectError(String);

impl Project {
    /// Whether it is the one that everything belongs to of which nothing else is said.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }
}

impl Default for Project {
    fn default() -> Project {
        Project(DEFAULT.into())
    }
}

forkd_proto::checked_text!(Project, ProjectError);

impl FromStr for Project {
    type Err = ProjectError;

    fn from_str(text: &str) -> Result<Project, ProjectError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        match (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(plain) {
            true => Ok(Project(text.into())),
            false => Err(ProjectError(text.chars().take(80).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain() {
        assert!(Project::default().is_default() && "default".parse::<Project>().unwrap().is_default());
        for name in ["a", "Team.one_2-x", &"x".repeat(64)] {
            assert_eq!(name.parse::<Project>().unwrap().as_str(), name);
        }
        for name in ["", "a b", "ü", "a/b", &"x".repeat(65)] {
            assert!(name.parse::<Project>().is_err(), "{name}");
            assert!(serde_json::from_value::<Project>(name.into()).is_err(), "{name}");
        }
    }
}
