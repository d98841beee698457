//! Commands that documents show are ones that the grammar accepts.

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;

use super::root;
use crate::arguments::command;

/// Pages with commands for users. The changelog shows older ones, too.
fn pages() -> Vec<PathBuf> {
    let mut pages = vec![root().join("README.md")];
    let mut directories = vec![root().join("docs"), root().join("recipes"), root().join("packaging")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

#[test]
fn documents_show_commands_that_are_accepted() {
    let (mut checked, mut wrong) = (0, Vec::new());
    for page in pages() {
        for line in lines(&std::fs::read_to_string(&page).unwrap()) {
            for words in simple_commands(&line) {
                checked += 1;
                if let Some(problem) = refused(&words) {
                    wrong.push(format!("{}: {}: {problem}", short(&page), words.join(" ")));
                }
            }
        }
    }
    assert!(checked > 60, "only {checked} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn short(page: &Path) -> String {
    page.strip_prefix(root()).unwrap_or(page).display().to_string()
}

fn refused(words: &[String]) -> Option<String> {
    match command().try_get_matches_from(words) {
        Ok(_) => None,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => None,
        Err(error) => Some(error.to_string().lines().next().unwrap_or_default().to_owned()),
    }
}

/// Lines of blocks that are for a shell, without prompts; continued ones are joined.
fn lines(page: &str) -> Vec<String> {
    let (mut found, mut shell, mut continued) = (Vec::new(), None, String::new());
    for line in page.lines() {
        let text = line.trim_start();
        if let Some(language) = text.strip_prefix("```") {
            shell = match (shell, language) {
                (None, "sh" | "bash") => Some(false),
                (None, "console") => Some(true),
                (None, _) => Some(false).filter(|_| false),
                (Some(_), _) => None,
            };
            continue;
        }
        let Some(console) = shell else { continue };
        // In a console, all but what is typed is output.
        let typed = match (console && continued.is_empty(), text.strip_prefix("# "), text.strip_prefix("$ "))
        {
            (true, Some(typed), _) | (true, None, Some(typed)) => typed,
            (true, None, None) => continue,
            (false, ..) => text,
        };
        match typed.strip_suffix('\\') {
            Some(begun) => continued.push_str(begun),
            None => found.push(std::mem::take(&mut continued) + typed),
        }
    }
    found
}

/// The calls of forkd in a line, as words.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let (outer, inner) = substituted(line);
    let mut found: Vec<_> = inner.iter().flat_map(|inner| simple_commands(inner)).collect();
    let Some(words) = shlex::split(&outer) else { return found };
    let ends = |word: &str| ["|", "||", "&&", ";", "&", "do", "then", "done"].contains(&word);
    let mut command: Vec<String> = Vec::new();
    let mut finish = |command: &mut Vec<String>| {
        let mut words = std::mem::take(command);
        let assigned = words.iter().take_while(|word| word.contains('=') || *word == "sudo").count();
        words.drain(..assigned);
        if words.first().is_some_and(|word| word == "forkd") {
            let redirected =
                words.iter().position(|word| word.starts_with(['>', '<']) || word.starts_with("2>"));
            words.truncate(redirected.unwrap_or(words.len()));
            found.push(words);
        }
    };
    for word in words {
        match word.strip_suffix(';') {
            _ if ends(&word) => finish(&mut command),
            Some(word) => {
                command.push(word.to_owned());
                finish(&mut command);
            }
            None => command.push(word),
        }
    }
    finish(&mut command);
    found
}

/// A line with a word in the place of each `$(…)`, and what is inside of them.
fn substituted(line: &str) -> (String, Vec<String>) {
    let (mut outer, mut inner, mut rest) = (String::new(), Vec::new(), line);
    while let Some(start) = rest.find("$(") {
        let mut depth = 0;
        let end = rest[start + 1..].find(|c: char| {
            depth += i32::from(c == '(') - i32::from(c == ')');
            depth == 0
        });
        let Some(end) = end else { break };
        outer += &rest[..start];
        outer += "VALUE";
        inner.push(rest[start + 2..start + 1 + end].to_owned());
        rest = &rest[start + 2 + end..];
    }
    (outer + rest, inner)
}

#[test]
fn calls_are_found_in_lines_of_a_shell() {
    let calls =
        |line: &str| -> Vec<String> { simple_commands(line).iter().map(|words| words.join(" ")).collect() };
    assert_eq!(calls("ids=$(forkd fork warm -n 2) # a comment"), ["forkd fork warm -n 2"]);
    assert_eq!(
        calls(r#"forkd eval "$(forkd fork half)" x | head"#),
        ["forkd fork half", "forkd eval VALUE x"]
    );
    assert_eq!(calls("A=b forkd ls > /dev/null; forkd kill --all"), ["forkd ls", "forkd kill --all"]);
    assert!(calls("echo forkd").is_empty() && calls("it's broken").is_empty());
}
