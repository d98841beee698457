//! The commands that a document shows, and a script that runs them as a reader would type them.
//!
//! Commands are what blocks of `sh` contain, and in blocks of `console` the lines that begin with `# ` or `$ `; the lines below one
//! are its output. Ids and numbers that a document shows as output are examples: commands that use them later get those that were printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

/// A command of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// The number of its first line.
    pub line: usize,
    /// The heading that it is below; "" before the first.
    pub section: String,
    /// As it is typed, with the lines that continue it and its here-document.
    pub text: String,
    /// The lines that are shown as its output.
    pub output: Vec<String>,
}

/// The commands of a page, in order.
pub fn shown(page: &str) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut section = String::new();
    // The indentation of the block, whether it is a console, and what its current command waits for.
    let mut block: Option<(usize, bool)> = None;
    let mut language_of_other = false;
    let mut unfinished: Option<Until> = None;
    for (number, whole) in (1..).zip(page.lines()) {
        let text = whole.trim_start();
        if let Some(language) = text.strip_prefix("```") {
            let indentation = whole.len() - text.len();
            match (block.take(), language_of_other, language) {
                (None, false, "sh" | "bash") => block = Some((indentation, false)),
                (None, false, "console") => block = Some((indentation, true)),
                (None, other, _) => language_of_other = !other,
                (Some(_), ..) => unfinished = None,
            }
            continue;
        }
        let Some((indentation, is_console)) = block else {
            if let (false, Some(heading)) = (language_of_other, whole.strip_prefix('#')) {
                section = heading.trim_start_matches('#').trim().to_owned();
            }
            continue;
        };
        let line = whole.get(indentation..).unwrap_or(text);
        let typed = line.strip_prefix("# ").or_else(|| line.strip_prefix("$ "));
        let text = match (&unfinished, is_console, typed) {
            (Some(_), ..) => line,
            (None, true, Some(typed)) => typed,
            (None, false, _) => line,
            (None, true, None) => {
                if let Some(Shown { output, .. }) = found.last_mut() {
                    output.push(line.to_owned());
                }
                continue;
            }
        };
        match (&unfinished, found.last_mut()) {
            (Some(until), Some(Shown { text: begun, .. })) => {
                let _ = write!(begun, "\n{text}");
                unfinished = until.after(text);
            }
            _ if text.trim().is_empty() || text.starts_with('#') => {}
            _ => {
                unfinished = Until::of(text);
                let section = section.clone();
                found.push(Shown { line: number, section, text: text.to_owned(), output: Vec::new() });
            }
        }
    }
    found
}

/// What ends a command of several lines.
enum Until {
    /// A line without a backslash at its end.
    Whole,
    /// The end of a here-document.
    Word(String),
}

impl Until {
    fn of(text: &str) -> Option<Until> {
        if let Some((_, rest)) = text.split_once("<<") {
            let word = rest.split_whitespace().next().unwrap_or_default();
            return Some(Until::Word(word.trim_matches(['\'', '"']).to_owned()));
        }
        text.ends_with('\\').then_some(Until::Whole)
    }

    /// The same after the next line.
    fn after(&self, line: &str) -> Option<Until> {
        match self {
            Until::Whole => Until::of(line),
            Until::Word(word) => (line != word).then(|| Until::Word(word.clone())),
        }
    }
}

/// How a command is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Run {
    /// As it is shown, or another command in its place.
    Foreground(String),
    /// It runs until it is ended at the end of the script. The next command begins when it has printed a line, if it `prints` one at once.
    Background { command: String, prints: bool },
}

/// A shell script that is put together command by command. It ends at the first one that fails, and says where on standard error.
#[derive(Debug)]
pub struct Script {
    text: String,
    /// Variables with the values of examples.
    printed: BTreeMap<String, String>,
}

/// Where a script writes what each command prints.
pub const OUTPUT: &str = "OUTPUT_DIRECTORY";

const BEGIN: &str = r#"set -eu
background=
at=start
trap '[ $? -eq 0 ] || echo "failed: $at" >&2; [ -z "$background" ] || kill $background 2>/dev/null || true' EXIT
trap 'exit 1' TERM
begun() { until [ -s "$1" ]; do kill -0 "$2" || { echo "it has ended: $1" >&2; exit 1; }; sleep 0.02; done; }
"#;
/// Those that run still do so a moment later, and end by a signal or as an interrupted program does.
const END: &str = r#"at='commands in the background'
if [ -n "$background" ]; then
    sleep 0.5
    kill $background 2>/dev/null || true
    for one in $background; do
        status=0
        wait "$one" || status=$?
        case $status in 0 | 130 | 143) ;; *) echo "one has ended with status $status" >&2; exit 1 ;; esac
    done
    background=
fi
"#;

impl Default for Script {
    fn default() -> Script {
        Script { text: BEGIN.to_owned(), printed: BTreeMap::new() }
    }
}

impl Script {
    /// Adds commands that no document shows.
    pub fn prepare(&mut self, place: &str, commands: &str) {
        let _ = write!(self.text, "at='{place}'\n{{ {commands}\n}} >&2\n");
    }

    /// Adds a command that a page shows.
    pub fn add(&mut self, page: &str, shown: &Shown, run: &Run) {
        let (Run::Foreground(command) | Run::Background { command, .. }) = run;
        let command = self.with_printed(command);
        let output = format!("\"${OUTPUT}/{}\"", shown.line);
        let _ = writeln!(self.text, "at='{page}:{}'", shown.line);
        let _ = match run {
            Run::Foreground(_) => writeln!(self.text, "{{ {command}\n}} > {output}\ncat {output}"),
            Run::Background { prints, .. } => {
                let wait = if *prints { format!("begun {output} $!\n") } else { String::new() };
                let start = format!("{{ exec {command}\n}} > {output} &");
                writeln!(self.text, "{start}\nbackground=\"$background $!\"\n{wait}")
            }
        };
        for (number, line) in (1..).zip(&shown.output) {
            if is_example(line) {
                let variable = format!("shown_{line}");
                let _ = writeln!(self.text, "{variable}=$(sed -n {number}p {output})");
                self.printed.insert(line.clone(), variable);
            }
        }
    }

    /// A command with variables in the place of examples.
    fn with_printed(&self, command: &str) -> String {
        let mut text = command.to_owned();
        for (example, variable) in &self.printed {
            text = text.replace(&format!(" {example}"), &format!(" \"${variable}\""));
        }
        text
    }

    /// The script as a whole.
    pub fn finish(self) -> String {
        self.text + END
    }
}

/// Commands that have printed other lines than a page shows, by their output in a directory.
pub fn differences<'a>(
    page: &str,
    commands: impl IntoIterator<Item = &'a Shown>,
    output: &Path,
) -> io::Result<Vec<String>> {
    let mut found = Vec::new();
    for Shown { line, text, output: shown, .. } in commands {
        let printed = fs::read_to_string(output.join(line.to_string()))?;
        let same = shown.len() == printed.lines().count()
            && shown.iter().zip(printed.lines()).all(|(shown, printed)| is_like(shown, printed));
        if !shown.is_empty() && !same {
            found.push(format!("{page}:{line}: {text} prints:\n{printed}instead of:\n{}", shown.join("\n")));
        }
    }
    Ok(found)
}

/// Whether a printed line is the shown one but for what differs from run to run: ids, numbers, digests and the width of columns.
fn is_like(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (shown.split_whitespace(), printed.split_whitespace());
    shown.clone().count() == printed.clone().count()
        && shown.zip(printed).all(|(shown, printed)| {
            shown == printed
                || is_id(shown) && is_id(printed)
                || is_number(shown) && printed.chars().all(|c| c.is_ascii_digit())
                || matches!((without_digest(shown), without_digest(printed)), (Some(one), Some(other)) if one == other)
        })
}

/// The name before a digest.
fn without_digest(word: &str) -> Option<&str> {
    let (name, digest) = word.rsplit_once('-')?;
    (digest.len() == 12 && digest.chars().all(|c| c.is_ascii_hexdigit())).then_some(name)
}

/// Whether a line is an id of a sandbox or a process.
fn is_example(line: &str) -> bool {
    is_id(line) || is_number(line)
}

fn is_id(word: &str) -> bool {
    word.len() == 20
        && word.starts_with('i')
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// Of three digits or more: smaller ones are results.
fn is_number(word: &str) -> bool {
    word.len() >= 3 && word.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title\n\n```console\n# one\ni8kmu4vycgeoxdbbafqp\n# two i8kmu4vycgeoxdbbafqp\n```\n\n## Below\n\n\
                        1. item\n\n   ```sh\n   # a comment\n   cat <<'END'\n   # text\n   END\n   long \\\n     line\n   ```\n\n\
                        ```toml\n# no = \"command\"\n```\n";

    #[test]
    fn commands_have_their_sections_lines_and_output() {
        let found = shown(PAGE);
        let texts: Vec<_> = found.iter().map(|it| (it.line, it.section.as_str(), it.text.as_str())).collect();
        let here_document = "cat <<'END'\n# text\nEND";
        assert_eq!(
            texts,
            [
                (4, "Title", "one"),
                (6, "Title", "two i8kmu4vycgeoxdbbafqp"),
                (15, "Below", here_document),
                (18, "Below", "long \\\n  line")
            ]
        );
        assert_eq!(found[0].output, ["i8kmu4vycgeoxdbbafqp"]);
    }

    #[test]
    fn a_script_uses_what_was_printed() {
        let directory = tempfile::tempdir().unwrap();
        let run = |commands: &[&str]| {
            let mut script = Script::default();
            for (command, shown) in commands.iter().zip(shown(PAGE)) {
                script.add("page", &shown, &Run::Foreground((*command).to_owned()));
            }
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &script.finish()]).env(OUTPUT, directory.path()).output().unwrap()
        };
        assert!(run(&["echo printed", "test i8kmu4vycgeoxdbbafqp = printed"]).status.success());
        let failed = run(&["true", "false"]);
        assert_eq!((failed.status.code(), &failed.stderr[..]), (Some(1), &b"failed: page:6\n"[..]));
    }

    #[test]
    fn lines_are_compared_without_what_differs() {
        for (shown, printed, same) in [
            ("143  no   sleep 60", " 69 no sleep 60", true),
            ("143  no   sleep 60", "143 no sleep 61", false),
            ("base    made    base-5d1f0c3a9e77", "base  made  base-0123456789ab", true),
            ("base-5d1f0c3a9e77", "other-5d1f0c3a9e77", false),
            ("i8kmu4vycgeoxdbbafqp", "ir8qru3t68a1yk8ydbve", true),
            ("i8kmu4vycgeoxdbbafqp", "half", false),
            ("20", "21", false),
            ("20", "20 21", false),
        ] {
            assert_eq!(is_like(shown, printed), same, "{shown} and {printed}");
        }
    }
}
