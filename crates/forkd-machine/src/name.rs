//! Names of machines: they become directory names and host names.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name of 1 to 32 of `a-z`, `0-9` and `-`, with no `-` at either end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

#[derive(Debug, thiserror::Error)]
#[error("invalid machine name {0:?}: use 1 to 32 of a-z, 0-9 and -, with no - at either end")]
pub struct NameError(String);

forkd_proto::checked_text!(Name, NameError);

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Name, NameError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = (1..=32).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if valid { Ok(Name(text.into())) } else { Err(NameError(text.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_directory_or_confuse_a_resolver_are_refused() {
        for good in ["a", "default", "e2e-2", &"x".repeat(32)] {
            assert!(good.parse::<Name>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "a/b", "A", "-a", "a-", "a b", "a.b", "ä", &"x".repeat(33)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }
}
