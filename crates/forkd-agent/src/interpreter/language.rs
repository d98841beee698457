//! The languages of contexts.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    Python,
    JavaScript,
    /// JavaScript with types, where Node.js can take them away.
    TypeScript,
    Bash,
    R,
    Java,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("no interpreter for '{0}': expected python, javascript, typescript, bash, r or java")]
pub struct UnknownLanguage(String);

impl Language {
    pub const DEFAULT: Self = Self::Python;
    /// Those whose default contexts are in every list.
    pub const LISTED: [Self; 2] = [Self::Python, Self::JavaScript];
    const ALL: [Self; 6] =
        [Self::Python, Self::JavaScript, Self::TypeScript, Self::Bash, Self::R, Self::Java];

    /// By any of its names.
    pub fn parse(name: &str) -> Result<Self, UnknownLanguage> {
        match name.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Ok(Self::Python),
            "javascript" | "js" | "node" => Ok(Self::JavaScript),
            "typescript" | "ts" => Ok(Self::TypeScript),
            "bash" | "sh" => Ok(Self::Bash),
            "r" => Ok(Self::R),
            "java" => Ok(Self::Java),
            // The name comes from outside and goes into a message: a part of it tells enough.
            _ => Err(UnknownLanguage(name.chars().take(50).collect())),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::JavaScript => "javascript",
            Self::TypeScript => "typescript",
            Self::Bash => "bash",
            Self::R => "r",
            Self::Java => "java",
        }
    }

    /// The context that executions use when they name none. Python's is called `default`, as E2B's is.
    pub fn default_context(self) -> &'static str {
        match self {
            Self::Python => "default",
            other => other.name(),
        }
    }

    /// The language whose default context has this name.
    pub fn of_default_context(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|language| language.default_context() == id)
    }
}

impl fmt::Display for Language {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_mean_the_same_and_others_are_refused_by_name() {
        assert_eq!(Language::parse("JS"), Ok(Language::JavaScript));
        assert_eq!(Language::parse("ts"), Ok(Language::TypeScript));
        assert_eq!(Language::parse("python"), Ok(Language::DEFAULT));
        assert_eq!(Language::parse("R"), Ok(Language::R));
        let refused = Language::parse("cobol").unwrap_err().to_string();
        assert!(refused.contains("'cobol'"), "{refused}");
        assert!(Language::parse(&"x".repeat(1000)).unwrap_err().to_string().len() < 150);
    }
}
