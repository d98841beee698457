//! The comments and string literals of a source file. Not a parser: the text between them is skipped.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    Python,
    TypeScript,
}

impl Language {
    /// What begins a comment that ends with its line.
    fn comment(self) -> &'static str {
        if self == Language::Python { "#" } else { "//" }
    }

    fn quotes(self) -> &'static [&'static str] {
        match self {
            Language::Rust => &["\""],
            Language::Python => &["\"\"\"", "'''", "\"", "'"],
            Language::TypeScript => &["\"", "'", "`"],
        }
    }

    /// Whether a literal may have several lines.
    fn has_lines(self, quote: &str) -> bool {
        self == Language::Rust || quote == "`" || quote.len() == 3
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Comment,
    Literal,
}

/// A comment without its marks, or a literal without its quotes. Comments on consecutive lines are one text.
#[derive(Debug)]
pub(super) struct Text {
    /// Where it begins.
    pub line: usize,
    pub kind: Kind,
    pub text: String,
}

/// Every text of a source, in its order.
pub(super) fn texts(source: &str, language: Language) -> Vec<Text> {
    let mut found: Vec<Text> = Vec::new();
    let (mut rest, mut line) = (source, 1);
    // The line on which a comment continues the last one.
    let mut next = 0;
    while !rest.is_empty() {
        let (text, length) = token(rest, language);
        let is_line = rest.starts_with(language.comment());
        let breaks = rest[..length].matches('\n').count();
        match (text, found.last_mut()) {
            (Some((_, text)), Some(last)) if is_line && line == next && last.kind == Kind::Comment => {
                last.text.push('\n');
                last.text.push_str(&text);
            }
            (Some((kind, text)), _) => found.push(Text { line, kind, text }),
            (None, _) => {}
        }
        if is_line {
            next = line + 1;
        }
        line += breaks;
        rest = &rest[length..];
    }
    found
}

/// The text at the beginning of what is left of a source, if one begins there; and how many bytes to skip.
fn token(rest: &str, language: Language) -> (Option<(Kind, String)>, usize) {
    if rest.starts_with(language.comment()) {
        let length = rest.find('\n').unwrap_or(rest.len());
        let text = rest[..length].trim_start_matches(['#', '/', '!', ':']).trim();
        return (Some((Kind::Comment, text.to_owned())), length);
    }
    if language != Language::Python && rest.starts_with("/*") {
        let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
        let marks = ['*', '/', ' '];
        let lines: Vec<_> = rest[..length].lines().map(|line| line.trim().trim_matches(marks)).collect();
        return (Some((Kind::Comment, lines.join("\n"))), length);
    }
    if language == Language::Rust {
        if let Some((text, length)) = raw_literal(rest) {
            return (Some((Kind::Literal, text)), length);
        }
        if let Some(length) = character(rest) {
            return (None, length);
        }
    }
    let Some(quote) = language.quotes().iter().find(|quote| rest.starts_with(**quote)) else {
        return (None, rest.chars().next().map_or(1, char::len_utf8));
    };
    let (text, length) = literal(rest, quote, language);
    (Some((Kind::Literal, text)), length)
}

/// Escapes become spaces; in Rust, one at the end of a line removes the spaces that follow.
fn literal(rest: &str, quote: &str, language: Language) -> (String, usize) {
    let mut text = String::new();
    let mut at = quote.len();
    while let Some(character) = rest[at..].chars().next() {
        if rest[at..].starts_with(quote) {
            return (text, at + quote.len());
        }
        // A quote that is no literal's, as in a regular expression.
        if character == '\n' && !language.has_lines(quote) {
            break;
        }
        at += character.len_utf8();
        if character != '\\' {
            text.push(character);
        } else if language == Language::Rust && rest[at..].starts_with('\n') {
            at = rest.len() - rest[at..].trim_start().len();
        } else {
            text.push(' ');
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    (text, at)
}

/// `r"..."` or `r#"..."#`.
fn raw_literal(rest: &str) -> Option<(String, usize)> {
    let marks = rest.strip_prefix('r')?;
    let hashes = marks.len() - marks.trim_start_matches('#').len();
    let text = marks[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &marks[..hashes]);
    let length = text.find(&end).unwrap_or(text.len());
    let start = rest.len() - text.len();
    Some((text[..length].to_owned(), (start + length + end.len()).min(rest.len())))
}

/// The length of a character in quotes, which may itself be a quote. Lifetimes are none.
fn character(rest: &str) -> Option<usize> {
    let inside = rest.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    if first == '\\' {
        // Behind the escaped character.
        let start = 2 + inside[1..].chars().next()?.len_utf8();
        return Some(start + rest[start..].find('\'')? + 1);
    }
    let end = 1 + first.len_utf8();
    rest[end..].starts_with('\'').then_some(end + 1)
}
