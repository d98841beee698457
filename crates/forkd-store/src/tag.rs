//! Names of snapshots and of disk layers. A tag is also the name of a directory.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// 1 to 64 of `a-z`, `0-9`, `.`, `_` and `-`, beginning with a letter or a digit. So it is never `.` or `..`, never hidden,
/// never a temporary name, and never taken for an option on a command line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tag(String);

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a tag: use 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit")]
pub struct TagError(String);

impl Tag {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Tag {
    type Err = TagError;

    fn from_str(text: &str) -> Result<Tag, TagError> {
        let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let valid = (1..=64).contains(&text.len())
            && text.bytes().take(1).all(alphanumeric)
            && text.bytes().all(|byte| alphanumeric(byte) || matches!(byte, b'.' | b'_' | b'-'));
        if valid {
            Ok(Tag(text.into()))
        } else {
            // What is repeated in a message is bounded too.
            Err(TagError(text.chars().take(80).collect()))
        }
    }
}

forkd_proto::as_text!(Tag, TagError);

impl AsRef<Path> for Tag {
    fn as_ref(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_would_leave_the_store_or_hide_in_it_are_refused() {
        for good in ["a", "0", "base-numpy_1.26", "a..b", &"x".repeat(64)] {
            assert!(good.parse::<Tag>().is_ok(), "{good}");
        }
        for bad in
            ["", ".", "..", ".tmp-a", "-a", "_a", "a/b", "../a", "A", "a b", "a\0", "ä", &"x".repeat(65)]
        {
            assert!(bad.parse::<Tag>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refusal_does_not_repeat_a_whole_novel() {
        let error = "x".repeat(1 << 20).parse::<Tag>().unwrap_err();
        assert!(error.to_string().len() < 300);
    }
}
