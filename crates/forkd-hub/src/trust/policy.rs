//! Which repositories must be signed, and by whom.
//!
//! ```toml
//! default = "refuse"                     # for repositories without a rule: "refuse" (the default) or "accept"
//!
//! [[repository]]
//! match = "registry.example/team/*"      # all below it; without "/*", this repository only. The longest match wins.
//! keys = ["""
//! -----BEGIN PUBLIC KEY-----
//! ...
//! -----END PUBLIC KEY-----
//! """]
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;

use super::key::{KeyError, PublicKey};

/// Bytes of the largest policy.
const MAX_TEXT: usize = 1 << 20;
const MAX_RULES: usize = 1000;
const MAX_KEYS: usize = 64;
const MAX_PATTERN: usize = 300;

/// A policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    #[error("the policy has {size} bytes, expected at most {MAX_TEXT}")]
    TooLarge { size: usize },
    #[error("the policy is not valid TOML of the expected form")]
    Syntax(#[source] Box<toml::de::Error>),
    #[error("the policy has {count} rules, expected at most {MAX_RULES}")]
    TooManyRules { count: usize },
    #[error(
        "{pattern:?} is not a valid pattern: expected registry/repository, or a beginning of it that ends with \"/*\""
    )]
    Pattern { pattern: String },
    #[error("two rules for {pattern:?}; put all keys into one")]
    Twice { pattern: String },
    #[error("the rule for {pattern:?} has {count} keys, expected 1 to {MAX_KEYS}")]
    KeyCount { pattern: String, count: usize },
    #[error("key {number} of the rule for {pattern:?} is invalid")]
    Key { pattern: String, number: usize, source: KeyError },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyText {
    #[serde(default)]
    default: DefaultText,
    #[serde(default)]
    repository: Vec<RuleText>,
}

#[derive(Deserialize, Default, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum DefaultText {
    #[default]
    Refuse,
    Accept,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    #[serde(rename = "match")]
    pattern: String,
    keys: Vec<String>,
}

/// What is required of a snapshot from a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requirement<'a> {
    /// Nothing: there is no rule for it, and the default is to accept.
    Accept,
    /// There is no rule for it, and the default is to refuse.
    Refuse,
    /// A signature by one of these keys.
    Signed { pattern: &'a str, keys: &'a [PublicKey] },
}

/// The rules of a host.
#[derive(Debug, Clone)]
pub struct Policy {
    accepts_others: bool,
    /// Keys by pattern.
    rules: BTreeMap<String, Vec<PublicKey>>,
}

impl Policy {
    /// Bytes of the largest policy.
    pub const MAX_BYTES: u64 = MAX_TEXT as u64;

    pub fn parse(text: &str) -> Result<Policy, PolicyError> {
        if text.len() > MAX_TEXT {
            return Err(PolicyError::TooLarge { size: text.len() });
        }
        let parsed: PolicyText =
            toml::from_str(text).map_err(|error| PolicyError::Syntax(Box::new(error)))?;
        if parsed.repository.len() > MAX_RULES {
            return Err(PolicyError::TooManyRules { count: parsed.repository.len() });
        }
        let mut rules = BTreeMap::new();
        for RuleText { pattern, keys } in parsed.repository {
            if !is_pattern(&pattern) {
                return Err(PolicyError::Pattern { pattern: pattern.chars().take(100).collect() });
            }
            if !(1..=MAX_KEYS).contains(&keys.len()) {
                return Err(PolicyError::KeyCount { pattern, count: keys.len() });
            }
            let keys = keys.iter().zip(1..).map(|(key, number)| {
                PublicKey::from_pem(key).map_err(|source| PolicyError::Key {
                    pattern: pattern.clone(),
                    number,
                    source,
                })
            });
            let keys = keys.collect::<Result<Vec<_>, _>>()?;
            let pattern = canonical(&pattern);
            if rules.contains_key(&pattern) {
                return Err(PolicyError::Twice { pattern });
            }
            rules.insert(pattern, keys);
        }
        Ok(Policy { accepts_others: matches!(parsed.default, DefaultText::Accept), rules })
    }

    /// What is required of a repository, named as [`crate::registry::Repository::name`] does.
    pub fn check(&self, repository: &str) -> Requirement<'_> {
        let repository = canonical(repository);
        if let Some(signed) = self.rule(&repository) {
            return signed;
        }
        // From the longest beginning to the shortest.
        let mut rest = repository.as_str();
        while let Some((beginning, _)) = rest.rsplit_once('/') {
            if let Some(signed) = self.rule(&format!("{beginning}/*")) {
                return signed;
            }
            rest = beginning;
        }
        if self.accepts_others { Requirement::Accept } else { Requirement::Refuse }
    }

    fn rule(&self, pattern: &str) -> Option<Requirement<'_>> {
        let (pattern, keys) = self.rules.get_key_value(pattern)?;
        Some(Requirement::Signed { pattern, keys })
    }
}

/// The same name for the same registry: host names are of either case, and HTTPS has its port.
fn canonical(name: &str) -> String {
    let (registry, rest) = name.split_once('/').unwrap_or((name, ""));
    let registry = registry.to_ascii_lowercase();
    let registry = registry.strip_suffix(":443").unwrap_or(&registry);
    if rest.is_empty() { registry.into() } else { format!("{registry}/{rest}") }
}

fn is_pattern(pattern: &str) -> bool {
    let name = pattern.strip_suffix("/*").unwrap_or(pattern);
    let is_prefix = name.len() < pattern.len();
    (1..=MAX_PATTERN).contains(&pattern.len())
        && (is_prefix || name.contains('/'))
        && name.split('/').all(|part| !part.is_empty())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-/:[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::trust::SigningKey;

    fn rule(pattern: &str, key: &str) -> String {
        format!("[[repository]]\nmatch = {pattern:?}\nkeys = [{key:?}]\n")
    }

    fn key() -> PublicKey {
        SigningKey::generate().unwrap().public()
    }

    #[test]
    fn the_longest_match_wins() {
        let keys = [key(), key(), key()];
        let patterns = ["registry.example/*", "registry.example/team/*", "registry.example/team/app"];
        let rules = patterns.iter().zip(&keys).map(|(pattern, key)| rule(pattern, &key.to_pem()));
        let text: String = rules.collect();
        let policy = Policy::parse(&text).unwrap();
        for (repository, expected) in [
            ("registry.example/team/app", Some(2)),
            ("registry.example/team/app/x", Some(1)),
            ("registry.example/team/application", Some(1)),
            ("registry.example/team", Some(0)),
            ("registry.example/teams/app", Some(0)),
            ("registry.example", None),
            ("registry.example.evil/team/app", None),
            ("Registry.EXAMPLE:443/team/app", Some(2)),
            ("registry.example:444/team/app", None),
            ("registry.example/Team/app", Some(0)),
            ("other.example/team/app", None),
        ] {
            let expected = match expected {
                Some(index) => {
                    Requirement::Signed { pattern: patterns[index], keys: std::slice::from_ref(&keys[index]) }
                }
                None => Requirement::Refuse,
            };
            assert_eq!(policy.check(repository), expected, "{repository}");
        }
        let policy = Policy::parse(&format!("default = \"accept\"\n{text}")).unwrap();
        assert_eq!(policy.check("other.example/a"), Requirement::Accept);
        assert_eq!(Policy::parse("").unwrap().check("a/b"), Requirement::Refuse);
    }

    #[test]
    fn a_policy_that_says_something_else_is_refused() {
        let pem = key().to_pem();
        let refused = |text: &str, says: &str| {
            let error = Policy::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        };
        for pattern in ["*", "a*/b", "registry.example/*/x", "a//b", "/a", "a/", "a", "a b/*", "/*", ""] {
            refused(&rule(pattern, &pem), "not a valid pattern");
        }
        refused("default = \"maybe\"", "not valid TOML");
        refused("deafult = \"accept\"", "not valid TOML");
        refused(&rule("a/b", "nonsense"), "key 1 of the rule for \"a/b\"");
        refused(&(rule("a/b", &pem) + &rule("a/b", &pem)), "two rules");
        refused(&(rule("a:443/b", &pem) + &rule("A/b", &pem)), "two rules");
        refused("[[repository]]\nmatch = \"a/b\"\nkeys = []", "0 keys");
        refused(&"#".repeat(MAX_TEXT + 1), "bytes");
    }

    /// One for all cases: making them takes longer than the cases.
    static PEM: LazyLock<String> = LazyLock::new(|| key().to_pem());

    /// A name of few parts, so that rules and repositories have some in common.
    fn any_name() -> impl Strategy<Value = String> {
        prop::collection::vec(prop::sample::select(vec!["a", "b", "Team", "x:443", "-"]), 1..5)
            .prop_map(|parts| parts.join("/"))
    }

    proptest! {
        #[test]
        fn any_text_is_a_policy_or_is_refused(
            text in ".{0,80}",
            pattern in ".{0,20}",
            cut in any::<prop::sample::Index>(),
            letter in any::<char>(),
        ) {
            let mut valid = format!("default = \"accept\"\n{}", rule("a/b", &PEM));
            let place = cut.index(valid.len());
            if valid.is_char_boundary(place) {
                valid.insert(place, letter);
            }
            for text in [text, rule(&pattern, &PEM), valid] {
                if let Ok(policy) = Policy::parse(&text) {
                    policy.check(&pattern);
                }
            }
        }

        #[test]
        fn of_any_rules_the_longest_that_matches_holds(
            rules in prop::collection::btree_set((any_name(), any::<bool>()), 0..6),
            repository in any_name(),
            accepts in any::<bool>(),
        ) {
            let patterns = rules.iter().map(|(name, is_prefix)| match is_prefix {
                true => format!("{name}/*"),
                false => name.clone(),
            });
            let patterns: Vec<String> = patterns.filter(|pattern| is_pattern(pattern)).collect();
            let distinct: std::collections::BTreeSet<String> =
                patterns.iter().map(|pattern| canonical(pattern)).collect();
            prop_assume!(distinct.len() == patterns.len());
            let default = if accepts { "accept" } else { "refuse" };
            let rules: String = patterns.iter().map(|pattern| rule(pattern, &PEM)).collect();
            let policy = Policy::parse(&format!("default = {default:?}\n{rules}")).unwrap();

            let name = canonical(&repository);
            let matches = |pattern: &&String| match pattern.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => **pattern == name,
            };
            let expected = distinct.iter().filter(matches).max_by_key(|pattern| pattern.len());
            let found = match policy.check(&repository) {
                Requirement::Signed { pattern, .. } => Some(pattern.to_owned()),
                other => {
                    prop_assert_eq!(other == Requirement::Accept, accepts);
                    None
                }
            };
            prop_assert_eq!(found.as_ref(), expected);
        }
    }
}
