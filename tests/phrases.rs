//! Documents, messages, module docs, scripts and clients have none of the phrases that CONTRIBUTING.md lists as habits to avoid.
//!
//! Help texts are in docs/reference/cli.md, descriptions of the API in docs/api.md, which other tests keep current.

mod source;

use std::path::{Path, PathBuf};

use self::source::{Kind, Language};
use super::root;

/// In lower case; a phrase begins and ends at words' ends.
const PHRASES: &[&str] = &[
    "are none",
    "as a client sees it",
    "as much as there is",
    "by itself",
    "by themselves",
    "come to its end",
    "comes to its end",
    "go on",
    "goes on",
    "is none",
    "make no sense",
    "makes no sense",
    "nobody",
    "somebody",
    "stand still",
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

/// The paragraphs of a file of lines whose comments begin with `#`, each with its line. Comments on consecutive lines are one text.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut was_comment = false;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        let comment = line.strip_prefix('#').map(|comment| comment.trim_matches(['#', '!', ' ']));
        match (comment, found.last_mut()) {
            (Some(""), _) => {}
            (Some(comment), Some((_, last))) if was_comment => {
                last.push('\n');
                last.push_str(comment);
            }
            (Some(comment), _) => found.push((number, comment.to_owned())),
            (None, _) => found.push((number, line.to_owned())),
        }
        was_comment = comment.is_some_and(|comment| !comment.is_empty());
    }
    found
}

/// Comments and messages of scripts, and what is installed or copied with comments: units, manifests, recipes.
#[test]
fn scripts_and_settings_are_in_plain_english() {
    let mut paths = vec![root().join("Makefile")];
    for directory in ["packaging", "scripts", "sdk", "tests"] {
        paths
            .extend(files(&root().join(directory), &[""]).into_iter().filter(|path| shebang(path).is_some()));
    }
    paths.extend(files(&root().join("packaging"), &["service", "sysusers", "yaml"]));
    paths.extend(files(&root().join("recipes"), &["toml"]));
    let mut wrong = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("a text");
        if shebang(&path).is_some_and(|program| program.contains("python")) {
            wrong.extend(habits_in_source(&path, &text, Language::Python, &[Kind::Comment, Kind::Literal]));
            continue;
        }
        let name = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        for (number, text) in lines(&text) {
            wrong.extend(habits(&text).iter().map(|phrase| format!("{name}:{number}: '{phrase}'")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The program that runs a script.
fn shebang(path: &Path) -> Option<String> {
    let text = std::fs::read(path).expect("a file");
    let first = text.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    Some(String::from_utf8_lossy(first).into_owned())
}

/// The habits in the comments or literals of a source, with its path and the line where each text begins.
fn habits_in_source(path: &Path, code: &str, language: Language, kinds: &[Kind]) -> Vec<String> {
    let name = path.strip_prefix(root()).unwrap_or(path).display();
    let mut wrong = Vec::new();
    for text in source::texts(code, language).into_iter().filter(|text| kinds.contains(&text.kind)) {
        for phrase in text.text.split("\n\n").flat_map(habits) {
            wrong.push(format!("{name}:{}: '{phrase}'", text.line));
        }
    }
    wrong
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
        wrong.extend(habits_in_source(&path, code, Language::Rust, &[Kind::Literal]));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Docstrings and comments, too: users read them in their editors. Examples and recipes are read as documents are.
#[test]
fn the_clients_and_examples_are_in_plain_english() {
    let mut wrong = Vec::new();
    for directory in
        ["sdk/python/src", "sdk/python/examples", "sdk/typescript/src", "sdk/typescript/examples", "recipes"]
    {
        for path in files(&root().join(directory), &["py", "ts"]) {
            let is_python = path.extension().is_some_and(|ending| ending == "py");
            let language = if is_python { Language::Python } else { Language::TypeScript };
            let text = std::fs::read_to_string(&path).expect("a source");
            wrong.extend(habits_in_source(&path, &text, language, &[Kind::Comment, Kind::Literal]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn contributors_find_the_phrases() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("a page");
    let missing: Vec<_> = PHRASES.iter().filter(|phrase| !page.contains(&format!("`{phrase}`"))).collect();
    assert!(missing.is_empty(), "CONTRIBUTING.md does not list {missing:?}");
    let missing: Vec<_> = NOUNS.iter().filter(|noun| !page.contains(*noun)).collect();
    assert!(missing.is_empty(), "CONTRIBUTING.md does not list {missing:?}");
}

#[test]
fn phrases_are_found_at_the_ends_of_words() {
    assert_eq!(habits("The sandbox goes\n  on. Nobody knows."), ["goes on", "nobody"]);
    assert!(habits("Antinobody is nonetheless fine").is_empty());
    assert_eq!(habits("'x' is no port"), ["is no ..."]);
    assert!(habits("There is no port x").is_empty());
    assert_eq!(habits("Be the daemon"), ["be the"]);
    assert!(habits(&prose("A `stood still` b\n```\nnobody\n```\n")).is_empty());
    assert_eq!(habits(&prose("```\nnobody  # somebody\n```\n")), ["somebody"]);
    assert_eq!(
        lines("a\n# it goes\n# on\nb # c\n"),
        [(1, "a".into()), (2, "it goes\non".into()), (4, "b # c".into())]
    );
}

#[test]
fn literals_and_comments_are_found_in_sources() {
    let path = root().join("a.rs");
    let of = |code: &str, language, kind| habits_in_source(&path, code, language, &[kind]);
    let rust = "say(\"it \\\n      goes \\\n      on\"); // nobody\nlet quote = '\"'; // somebody\n";
    assert_eq!(of(rust, Language::Rust, Kind::Literal), ["a.rs:1: 'goes on'"]);
    assert_eq!(of(rust, Language::Rust, Kind::Comment), ["a.rs:3: 'nobody'", "a.rs:3: 'somebody'"]);
    let python = "def f():\n    \"\"\"It goes\n    on.\"\"\"\n    return x is None  # it isn't\n";
    assert_eq!(of(python, Language::Python, Kind::Literal), ["a.rs:2: 'goes on'"]);
    assert!(of(python, Language::Python, Kind::Comment).is_empty());
    let typescript = "/**\n * It goes\n * on.\n */\nconst a = `nobody`; // 'whoever'\n";
    assert_eq!(
        of(typescript, Language::TypeScript, Kind::Comment),
        ["a.rs:1: 'goes on'", "a.rs:5: 'whoever'"]
    );
    assert_eq!(of(typescript, Language::TypeScript, Kind::Literal), ["a.rs:5: 'nobody'"]);
}
