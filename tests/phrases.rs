//! Documents, messages and module docs are in plain English: none has the phrases that CONTRIBUTING.md lists as habits to avoid.
//!
//! Help texts are in docs/reference/cli.md, descriptions of the API in docs/api.md, which other tests keep current.

use std::path::{Path, PathBuf};

use super::root;

/// In lower case; a phrase begins and ends at words' ends.
const PHRASES: &[&str] = &[
    "are none",
    "as much as there is",
    "by itself",
    "by themselves",
    "come to its end",
    "comes to its end",
    "goes on",
    "is none",
    "make no sense",
    "makes no sense",
    "nobody",
    "somebody",
    "stands still",
    "stood still",
    "what is left",
    "whoever",
];

/// As in "0 is no port", for "0 is not a valid port". "There is no port" is fine.
const NOUNS: &[&str] = &["address", "digest", "id", "name", "number", "port", "tag"];

/// The habits in a text.
fn habits(text: &str) -> Vec<&'static str> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let ends = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric());
    let is_in = |phrase: &str| {
        text.match_indices(phrase).any(|(start, _)| {
            ends(text[..start].chars().next_back()) && ends(text[start + phrase.len()..].chars().next())
        })
    };
    let mut found: Vec<_> = PHRASES.iter().copied().filter(|phrase| is_in(phrase)).collect();
    let denied =
        |noun: &&&str| is_in(&format!("is no {noun}")) && !text.contains(&format!("there is no {noun}"));
    found.extend(NOUNS.iter().filter(denied).map(|_| "is no ..."));
    if text.starts_with("be the ") {
        found.push("be the");
    }
    found
}

/// Files below a directory with one of these endings; "" for files without one.
pub(super) fn files(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).expect("a directory").map(|entry| entry.expect("an entry"))
        {
            let path = entry.path();
            if path.is_dir() {
                if !path.ends_with("node_modules") && !path.ends_with("target") {
                    directories.push(path);
                }
            } else if endings
                .contains(&path.extension().and_then(|ending| ending.to_str()).unwrap_or_default())
            {
                found.push(path);
            }
        }
    }
    found
}

/// A document without its blocks and spans of code; comments in blocks stay.
fn prose(page: &str) -> String {
    let mut text = String::new();
    let mut code = false;
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if code {
            let comment = line.split_once("# ").or_else(|| line.split_once("// "));
            text = text + "\n" + comment.map_or("", |(_, comment)| comment);
        } else {
            let pieces = line.split('`').step_by(2).collect::<Vec<_>>().join("CODE");
            text = text + &pieces + if line.is_empty() { "\n\n" } else { "\n" };
        }
    }
    text
}

#[test]
fn documents_are_in_plain_english() {
    let mut pages: Vec<_> = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"]
        .map(|page| root().join(page))
        .into();
    for directory in ["docs", "recipes", "packaging", "sdk"] {
        pages.extend(files(&root().join(directory), &["md"]));
    }
    let mut wrong = Vec::new();
    for page in &pages {
        wrong.extend(habits_of(page, &std::fs::read_to_string(page).expect("a page")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The habits in the paragraphs of a document, with its path.
fn habits_of(page: &Path, text: &str) -> Vec<String> {
    let name = page.strip_prefix(root()).unwrap_or(page).display();
    let mut wrong = Vec::new();
    for paragraph in prose(text).split("\n\n").flat_map(|text| text.split("\n- ")) {
        for phrase in habits(paragraph) {
            let start: String = paragraph.trim().chars().take(90).collect();
            wrong.push(format!("{name}: '{phrase}' in: {start}"));
        }
    }
    wrong
}

#[test]
fn module_docs_are_in_plain_english() {
    let mut wrong = Vec::new();
    for directory in ["crates", "tests", "fuzz"] {
        for path in files(&root().join(directory), &["rs"]) {
            let source = std::fs::read_to_string(&path).expect("a source");
            let lines = source.lines().filter_map(|line| line.strip_prefix("//!"));
            let page: Vec<_> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
            wrong.extend(habits_of(&path, &page.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Comments and messages alike.
#[test]
fn scripts_are_in_plain_english() {
    let mut wrong = Vec::new();
    let mut scripts = vec![root().join("Makefile")];
    for directory in ["packaging", "scripts"] {
        scripts.extend(files(&root().join(directory), &[""]));
    }
    for path in scripts {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        if !text.starts_with("#!") && !path.ends_with("Makefile") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let name = path.strip_prefix(root()).unwrap_or(&path).display();
            wrong.extend(habits(line).iter().map(|phrase| format!("{name}:{}: '{phrase}'", number + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The literals of a line of code. Quotes inside of them are escaped and end a piece early, which does not matter here.
fn literals(line: &str) -> String {
    line.split('"').skip(1).step_by(2).collect::<Vec<_>>().join(" ")
}

#[test]
fn messages_are_in_plain_english() {
    let mut wrong = Vec::new();
    for path in files(&root().join("crates"), &["rs"]) {
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        if name.contains("/tests") || name.contains("/testing/") || name.contains("/reference/") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source");
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
        for (number, line) in code.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for phrase in habits(&literals(line)) {
                wrong.push(format!("{name}:{}: '{phrase}'", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn messages_of_the_clients_are_in_plain_english() {
    let mut wrong = Vec::new();
    for directory in ["sdk/python/src", "sdk/typescript/src"] {
        for path in files(&root().join(directory), &["py", "ts"]) {
            let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
            let text = std::fs::read_to_string(&path).expect("a source");
            for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.contains("\"\"\"")) {
                let habits = habits(&literals(&line.replace('`', "\"")));
                wrong.extend(habits.iter().map(|phrase| format!("{name}:{}: '{phrase}'", number + 1)));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn phrases_are_found_at_the_ends_of_words() {
    assert_eq!(habits("The sandbox goes\n  on. Nobody knows."), ["goes on", "nobody"]);
    assert!(habits("Antinobody is nonetheless fine").is_empty());
    assert_eq!(habits("'x' is no port"), ["is no ..."]);
    assert!(habits("There is no port x").is_empty());
    assert_eq!(habits("Be the daemon"), ["be the"]);
    assert_eq!(habits(&literals(r#"say("it stood still"); // nobody"#)), ["stood still"]);
    assert!(habits(&prose("A `stood still` b\n```\nnobody\n```\n")).is_empty());
    assert_eq!(habits(&prose("```\nnobody  # somebody\n```\n")), ["somebody"]);
}
