//! Names of images: `python:3.12-slim`, `registry.example/team/app:v1`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name, always with a tag or a digest. It is also the name of a file, encoded.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

#[derive(Debug, thiserror::Error)]
#[error(
    "invalid image name {0:?}: use 1 to 200 of a-z, A-Z, 0-9 and '._-/:@', beginning with a letter or a digit"
)]
pub struct NameError(String);

impl Name {
    /// The name as a file's: without slashes, never hidden, never `.` or `..`.
    pub fn encoded(&self) -> String {
        self.0.replace('/', "%2F").replace(':', "%3A").replace('@', "%40")
    }
}

forkd_proto::checked_text!(Name, NameError);

impl FromStr for Name {
    type Err = NameError;

    /// A name without a tag gets `latest`, as everywhere.
    fn from_str(text: &str) -> Result<Name, NameError> {
        let valid = (1..=200).contains(&text.len())
            && text.bytes().take(1).all(|byte| byte.is_ascii_alphanumeric())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte))
            && !text.ends_with(['/', ':', '@']);
        if !valid {
            // What is repeated in a message is bounded too.
            return Err(NameError(text.chars().take(80).collect()));
        }
        let last = text.rsplit('/').next().unwrap_or(text);
        Ok(Name(if last.contains([':', '@']) { text.to_owned() } else { format!("{text}:latest") }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_get_a_tag_and_stay_in_their_directory() {
        for (given, name) in [
            ("python", "python:latest"),
            ("python:3.12", "python:3.12"),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
            ("a@sha256:00", "a@sha256:00"),
        ] {
            let parsed: Name = given.parse().unwrap();
            assert_eq!(parsed.as_str(), name);
            assert!(!parsed.encoded().contains(['/', ':']));
        }
        for bad in ["", ".", "..", "../x", "/x", "-x", "a b", "a%2F", "a:", "a/", "ä", &"x".repeat(201)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
