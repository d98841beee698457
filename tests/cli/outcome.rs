//! What a command came to, as text.

use std::path::Path;
use std::process::Output;

/// The exit status, stdout and stderr, with ids and the home replaced by words.
pub fn outcome(output: &Output, home: &Path) -> String {
    let status = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
    let mut text = format!("exit: {status}\n");
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        if !bytes.is_empty() {
            text += &format!("--- {name}\n{}", String::from_utf8_lossy(bytes));
        }
    }
    without_ids(&text.replace(&*home.to_string_lossy(), "HOME"))
}

/// Replaces the ids of sandboxes: 20 letters and digits that begin with an i.
fn without_ids(text: &str) -> String {
    let mut replaced = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let is_part = |character: char| character.is_ascii_lowercase() || character.is_ascii_digit();
        let length = rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(length);
        replaced += if word.len() == 20 && word.starts_with('i') { "ID" } else { word };
        let mut characters = behind.chars();
        replaced.extend(characters.next());
        rest = characters.as_str();
    }
    replaced
}

#[test]
fn ids_are_replaced_and_nothing_else() {
    assert_eq!(without_ids("a i0123456789abcdefghi-1, image"), "a ID-1, image");
}
