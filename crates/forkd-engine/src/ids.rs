//! Names that the engine gives.

use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A sandbox: 1 to 40 of `a-z` and `0-9`, beginning with a letter. So it can be part of a host name, and is never a path.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxId(String);

/// A file that a VM writes, or has written, its disk to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerId(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not an id")]
pub struct IdError(String);

/// What the names of merged layers begin with.
const MERGED: char = 'm';

/// Characters of a new id behind its first: 98 bits.
const LENGTH: usize = 19;
const LONGEST: usize = 40;

impl SandboxId {
    pub fn random() -> io::Result<SandboxId> {
        random('i').map(SandboxId)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl LayerId {
    pub fn random() -> io::Result<LayerId> {
        random('l').map(LayerId)
    }

    /// A layer that others were merged into. Its level, at most 9, is part of its name.
    pub fn merged(level: u32) -> io::Result<LayerId> {
        Ok(LayerId(format!("{MERGED}{}{}", level.min(9), random('x')?)))
    }

    /// How often what is in it was merged.
    pub fn level(&self) -> u32 {
        let level = self.0.strip_prefix(MERGED).and_then(|rest| rest.chars().next());
        level.and_then(|level| level.to_digit(10)).unwrap_or(0)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn random(first: char) -> io::Result<String> {
    const CHARACTERS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    // Numbers from here on would make some characters likelier than others.
    const END: u8 = 252;
    let mut id = String::from(first);
    while id.len() <= LENGTH {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        let fair = bytes.into_iter().filter(|byte| *byte < END);
        let characters = fair.map(|byte| char::from(CHARACTERS[usize::from(byte) % CHARACTERS.len()]));
        id.extend(characters.take(LENGTH + 1 - id.len()));
    }
    Ok(id)
}

fn check(text: &str) -> Result<String, IdError> {
    let valid = (1..=LONGEST).contains(&text.len())
        && text.bytes().take(1).all(|byte| byte.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    // What is repeated in a message is bounded too.
    if valid { Ok(text.into()) } else { Err(IdError(text.chars().take(80).collect())) }
}

impl FromStr for SandboxId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<SandboxId, IdError> {
        check(text).map(SandboxId)
    }
}

impl TryFrom<String> for SandboxId {
    type Error = IdError;

    fn try_from(text: String) -> Result<SandboxId, IdError> {
        text.parse()
    }
}

impl From<SandboxId> for String {
    fn from(id: SandboxId) -> String {
        id.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl TryFrom<String> for LayerId {
    type Error = IdError;

    fn try_from(text: String) -> Result<LayerId, IdError> {
        check(&text).map(LayerId)
    }
}

impl From<LayerId> for String {
    fn from(id: LayerId) -> String {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_and_can_be_read_again() {
        let ids: std::collections::BTreeSet<_> = (0..1000).map(|_| SandboxId::random().unwrap()).collect();
        assert_eq!(ids.len(), 1000);
        for id in ids {
            assert_eq!(id.as_str().len(), LENGTH + 1);
            assert_eq!(id.as_str().parse::<SandboxId>().unwrap(), id);
        }
    }

    #[test]
    fn layers_have_levels() {
        assert_eq!(LayerId::random().unwrap().level(), 0);
        for level in 1..=9 {
            let id = LayerId::merged(level).unwrap();
            assert_eq!(LayerId::try_from(String::from(id.clone())).unwrap(), id);
            assert_eq!(id.level(), level);
        }
    }

    #[test]
    fn what_could_be_a_path_is_no_id() {
        for text in ["", ".", "..", "a/b", "A", "1a", "a-b", "a b", &"a".repeat(41)] {
            assert!(text.parse::<SandboxId>().is_err(), "{text:?}");
        }
    }
}
