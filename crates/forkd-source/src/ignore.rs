//! `.dockerignore`: which files of the context do not count.
//!
//! Not `.gitignore`: patterns begin at the context's root, the last that matches decides, and `!` takes back.

use globset::{GlobBuilder, GlobMatcher};

/// Patterns that a person writes.
const MAX_PATTERNS: usize = 10_000;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IgnoreError {
    #[error("line {line} of .dockerignore: {pattern:?} is not a pattern")]
    Pattern { line: usize, pattern: String },
    #[error(".dockerignore has more than {MAX_PATTERNS} lines")]
    TooMany,
}

/// The patterns of a file.
#[derive(Debug, Default)]
pub struct Ignore {
    patterns: Vec<(GlobMatcher, bool)>,
}

impl Ignore {
    pub fn parse(text: &str) -> Result<Ignore, IgnoreError> {
        let mut patterns = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let pattern = line.trim();
            if pattern.is_empty() || pattern.starts_with('#') {
                continue;
            }
            if patterns.len() == MAX_PATTERNS {
                return Err(IgnoreError::TooMany);
            }
            let (excludes, path) = match pattern.strip_prefix('!') {
                Some(path) => (false, path.trim()),
                None => (true, pattern),
            };
            let path = path.trim_start_matches("./").trim_matches('/');
            let matcher = matcher(path).ok_or_else(|| IgnoreError::Pattern {
                line: number + 1,
                pattern: pattern.chars().take(80).collect(),
            })?;
            patterns.push((matcher, excludes));
        }
        Ok(Ignore { patterns })
    }

    /// Whether a path below the context, or a directory that it is in, is left out.
    pub fn excludes(&self, path: &str) -> bool {
        let mut excluded = false;
        for (matcher, excludes) in &self.patterns {
            if *excludes != excluded && parents(path).any(|parent| matcher.is_match(parent)) {
                excluded = *excludes;
            }
        }
        excluded
    }

    /// Whether something in an excluded directory could have been taken back.
    pub fn takes_back(&self) -> bool {
        self.patterns.iter().any(|(_, excludes)| !excludes)
    }
}

/// A pattern in which `*` stops at a slash and `**` does not.
pub(crate) fn matcher(pattern: &str) -> Option<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).backslash_escape(true).build().ok()?;
    Some(glob.compile_matcher())
}

/// The path and the directories above it: `a/b/c`, `a/b`, `a`.
fn parents(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |path| path.rsplit_once('/').map(|(parent, _)| parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_pattern_decides() {
        let ignore =
            Ignore::parse("# comment\n\nnode_modules\n*.log\n/docs/*\n!docs/keep.md\n**/*.tmp\n.git/\n")
                .unwrap();
        for excluded in
            ["node_modules", "node_modules/a/b", "x.log", "docs/a.md", "a/b/c.tmp", "c.tmp", ".git/HEAD"]
        {
            assert!(ignore.excludes(excluded), "{excluded}");
        }
        for kept in ["src/node_modules", "a/x.log", "docs/keep.md", "docs", "gitless"] {
            assert!(!ignore.excludes(kept), "{kept}");
        }
    }

    #[test]
    fn a_bad_pattern_is_named_with_its_line() {
        let error = Ignore::parse("ok\na[b\n").unwrap_err().to_string();
        assert_eq!(error, "line 2 of .dockerignore: \"a[b\" is not a pattern");
        assert!(!Ignore::parse("").unwrap().excludes("anything"));
    }
}
