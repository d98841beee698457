//! Domain names of an allow-list: `example.com` is that name only, `*.example.com` everything below it and not the name itself.

use std::fmt;
use std::str::FromStr;

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;
const WILDCARD: &str = "*.";

/// A name, or all names below one. In small letters, without a dot at the end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamePattern {
    below: bool,
    name: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a domain name; expected one such as example.com, or *.example.com for all names below it"
)]
pub struct NameError(String);

impl NamePattern {
    /// Whether a name is meant. Letters are small or large; a dot at the end means nothing.
    pub fn matches(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        let same = |text: &str| text.eq_ignore_ascii_case(&self.name);
        if !self.below {
            return same(name);
        }
        // A name that is not ASCII is not a DNS name, and its bytes must not be split.
        let Some(split) = name.len().checked_sub(self.name.len() + 1) else { return false };
        let (Some(before), Some(end)) = (name.get(..split + 1), name.get(split + 1..)) else { return false };
        split > 0 && before.ends_with('.') && same(end)
    }
}

impl FromStr for NamePattern {
    type Err = NameError;

    fn from_str(text: &str) -> Result<NamePattern, NameError> {
        let (below, name) = match text.strip_prefix(WILDCARD) {
            Some(name) => (true, name),
            None => (false, text),
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let label = |label: &str| {
            (1..=MAX_LABEL).contains(&label.len())
                && label.bytes().all(plain)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        if name.len() <= MAX_NAME && name.split('.').all(label) {
            return Ok(NamePattern { below, name: name.to_ascii_lowercase() });
        }
        Err(NameError(text.chars().take(80).collect()))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", if self.below { WILDCARD } else { "" }, self.name)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> NamePattern {
        text.parse().unwrap()
    }

    #[test]
    fn a_name_is_itself_and_a_star_is_what_is_below() {
        assert!(pattern("example.com").matches("Example.COM."));
        assert!(!pattern("example.com").matches("a.example.com"));
        let below = pattern("*.Example.com");
        assert!(below.matches("a.example.com") && below.matches("a.b.EXAMPLE.com."));
        for other in
            ["example.com", "badexample.com", ".example.com", "a.example.com.evil.org", "", "é.example.co"]
        {
            assert!(!below.matches(other), "{other}");
        }
        for wrong in
            ["", ".", "*", "*.", "a..b", "-a.b", "a b", "*.*.b", "a.*.b", "exämple.com", &"a".repeat(64)]
        {
            assert!(wrong.parse::<NamePattern>().is_err(), "{wrong}");
        }
    }

    proptest! {
        /// The slow way: label by label from the end.
        #[test]
        fn labels_decide(name in "[abAB.]{0,12}", pattern in "(\\*\\.)?[ab]{1,2}(\\.[ab]){0,2}") {
            let parsed = super::tests::pattern(&pattern);
            let wanted: Vec<&str> = pattern.trim_start_matches("*.").split('.').rev().collect();
            let lower = name.to_lowercase();
            let trimmed = lower.strip_suffix('.').unwrap_or(&lower);
            let labels: Vec<&str> = trimmed.split('.').rev().collect();
            let ends = labels.len() >= wanted.len() && labels[..wanted.len()] == wanted[..];
            let expected = match pattern.starts_with('*') {
                true => ends && labels.len() > wanted.len() && trimmed.len() != pattern.len() - 1,
                false => ends && labels.len() == wanted.len(),
            };
            prop_assert_eq!(parsed.matches(&name), expected, "{} {}", pattern, name);
        }

        #[test]
        fn no_name_panics(name in ".{0,40}") {
            let _ = pattern("*.example.com").matches(&name);
        }
    }
}
