//! Words of Dockerfiles: quotes, escapes and variables.
//!
//! | written | means |
//! |---|---|
//! | `$NAME`, `${NAME}` | the variable, or nothing |
//! | `${NAME:-word}`, `${NAME-word}` | `word` if the variable is unset (`:`: or empty) |
//! | `${NAME:+word}`, `${NAME+word}` | `word` if it is set (`:`: and not empty) |
//! | `'…'` | itself | `"…"` with variables | `\x` is `x` |

use std::collections::BTreeMap;

/// Variables inside the words of variables.
const MAX_DEPTH: usize = 10;
/// What a line may grow to. Variables can double it again and again.
const MAX_EXPANDED: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    #[error("a quote is not closed")]
    Quote,
    #[error("a variable is not closed: '}}' is missing")]
    Brace,
    #[error("{0:?} is not a variable")]
    Variable(String),
    #[error("${{…:{0}…}} is not supported")]
    Modifier(char),
    #[error("variables are nested too deep or grow too large")]
    TooLarge,
}

pub type Variables = BTreeMap<String, String>;

/// Expands a text to one word; spaces in it are its own.
pub fn expand(text: &str, variables: &Variables, escape: char) -> Result<String, WordError> {
    Ok(lex(text, variables, escape, false, 0)?.concat())
}

/// Splits a text into words at spaces outside of quotes, and expands them.
pub fn split(text: &str, variables: &Variables, escape: char) -> Result<Vec<String>, WordError> {
    lex(text, variables, escape, true, 0)
}

fn lex(
    text: &str,
    variables: &Variables,
    escape: char,
    splits: bool,
    depth: usize,
) -> Result<Vec<String>, WordError> {
    if depth > MAX_DEPTH {
        return Err(WordError::TooLarge);
    }
    let mut words = Vec::new();
    let mut word = String::new();
    // An empty pair of quotes is a word too.
    let mut has_word = !splits;
    let mut quote = None;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match (c, quote) {
            ('\'', None) | ('"', None) => {
                quote = Some(c);
                has_word = true;
            }
            (c, Some(open)) if c == open => quote = None,
            (c, Some('\'')) => word.push(c),
            (c, quote) if c == escape => {
                let next = rest.chars().next();
                // Inside of double quotes only these can be escaped; before others the sign is itself.
                if quote.is_some() && !next.is_some_and(|next| next == '"' || next == '$' || next == escape) {
                    word.push(c);
                } else if let Some(next) = next {
                    word.push(next);
                    rest = &rest[next.len_utf8()..];
                }
                has_word = true;
            }
            ('$', _) => {
                let (value, after) = variable(rest, variables, escape, depth)?;
                word.push_str(&value);
                has_word = true;
                rest = after;
            }
            (c, None) if splits && c.is_whitespace() => {
                if has_word {
                    words.push(std::mem::take(&mut word));
                }
                has_word = false;
            }
            (c, _) => {
                word.push(c);
                has_word = true;
            }
        }
        if word.len() > MAX_EXPANDED {
            return Err(WordError::TooLarge);
        }
    }
    if quote.is_some() {
        return Err(WordError::Quote);
    }
    if has_word {
        words.push(word);
    }
    Ok(words)
}

/// The value of the variable that begins after a `$`, and what follows it.
fn variable<'a>(
    rest: &'a str,
    variables: &Variables,
    escape: char,
    depth: usize,
) -> Result<(String, &'a str), WordError> {
    let value = |name: &str| variables.get(name).cloned();
    let Some(inside) = rest.strip_prefix('{') else {
        let end = name_length(rest);
        if end == 0 {
            // A dollar that begins nothing is one.
            return Ok(("$".into(), rest));
        }
        return Ok((value(&rest[..end]).unwrap_or_default(), &rest[end..]));
    };
    let close = closing_brace(inside, escape).ok_or(WordError::Brace)?;
    let (inside, after) = (&inside[..close], &inside[close + 1..]);
    let end = name_length(inside);
    let (name, modifier) = inside.split_at(end);
    if name.is_empty() {
        return Err(WordError::Variable(inside.chars().take(40).collect()));
    }
    let (counts_empty, modifier) = match modifier.strip_prefix(':') {
        Some(modifier) => (true, modifier),
        None => (false, modifier),
    };
    let set = value(name).filter(|value| !(counts_empty && value.is_empty()));
    let mut characters = modifier.chars();
    let word = |word: &str| Ok::<_, WordError>(lex(word, variables, escape, false, depth + 1)?.concat());
    let expanded = match (characters.next(), set) {
        (None, _) if counts_empty => return Err(WordError::Brace),
        (None, set) => set.unwrap_or_default(),
        (Some('-'), Some(set)) => set,
        (Some('-'), None) | (Some('+'), Some(_)) => word(characters.as_str())?,
        (Some('+'), None) => String::new(),
        (Some(other), _) => return Err(WordError::Modifier(other)),
    };
    Ok((expanded, after))
}

fn name_length(text: &str) -> usize {
    let is_name =
        |(at, c): (usize, char)| c == '_' || c.is_ascii_alphabetic() || (at > 0 && c.is_ascii_digit());
    text.char_indices().take_while(|it| is_name(*it)).count()
}

/// Where the brace closes that was open before the text.
fn closing_brace(text: &str, escape: char) -> Option<usize> {
    let mut open = 0;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            c if c == escape => escaped = true,
            '{' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn variables() -> Variables {
        [("A", "1"), ("EMPTY", ""), ("B", "x y")].map(|(name, value)| (name.into(), value.into())).into()
    }

    #[test]
    fn variables_are_expanded() {
        for (text, expected) in [
            ("$A", "1"),
            ("${A}b", "1b"),
            ("$Ab", ""),
            ("a$", "a$"),
            ("$1", "$1"),
            ("\\$A", "$A"),
            ("'$A'", "$A"),
            ("\"$A\"", "1"),
            ("${NONE:-x}", "x"),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY-x}", ""),
            ("${A:-x}", "1"),
            ("${A:+x}", "x"),
            ("${NONE:+x}", ""),
            ("${NONE:-${A}2}", "12"),
            ("${NONE:-a b}", "a b"),
            ("/opt/$B/bin", "/opt/x y/bin"),
            ("\"a\\n\"", "a\\n"),
        ] {
            assert_eq!(expand(text, &variables(), '\\').as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn words_are_split_outside_of_quotes_and_values() {
        let words = split(r#"A=b  C="d e" F=g\ h I=$B '' "#, &variables(), '\\').unwrap();
        assert_eq!(words, ["A=b", "C=d e", "F=g h", "I=x y", ""]);
        assert_eq!(split("", &variables(), '\\').unwrap(), [""; 0]);
    }

    #[test]
    fn what_is_not_closed_is_refused() {
        for (text, error) in [
            ("'a", WordError::Quote),
            ("\"a", WordError::Quote),
            ("${A", WordError::Brace),
            ("${A:}", WordError::Brace),
            ("${}", WordError::Variable(String::new())),
            ("${A:?x}", WordError::Modifier('?')),
            ("${A#x}", WordError::Modifier('#')),
        ] {
            assert_eq!(expand(text, &variables(), '\\'), Err(error), "{text}");
        }
        let deep = "${X:-".repeat(50) + &"}".repeat(50);
        assert_eq!(expand(&deep, &variables(), '\\'), Err(WordError::TooLarge));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[ab$ {}:+'\"\\\\é-]{0,40}") {
            let _ = expand(&text, &variables(), '\\');
            let _ = split(&text, &variables(), '`');
        }

        #[test]
        fn plain_text_stays(text in "[a-zA-Z0-9 /._=-]{0,40}") {
            prop_assert_eq!(expand(&text, &variables(), '\\').unwrap(), text);
        }
    }
}
