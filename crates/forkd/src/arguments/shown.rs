//! The grammar as users see it: commands in groups, examples, and completion of ids, tags and images.

use std::fmt::Write;

use clap::builder::StyledStr;
use clap::{Command, CommandFactory};
use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};

use super::Arguments;
use crate::completion;

/// Every visible command is in one group.
const GROUPS: &[(&str, &[&str])] = &[
    ("Run code", &["run", "exec", "eval", "shell", "process", "context"]),
    (
        "Sandboxes",
        &[
            "fork", "ls", "inspect", "stats", "logs", "events", "ping", "wait", "ttl", "pause", "resume",
            "kill", "cleanup",
        ],
    ),
    ("Snapshots and branches", &["snapshot", "branch", "rollback"]),
    ("Files and networks", &["cp", "port-forward", "egress", "bandwidth"]),
    ("Images", &["image", "images", "rmi", "kernel", "recipe"]),
    ("Daemon and host", &["serve", "doctor", "machine", "token", "project", "hold", "bench"]),
    ("Other clients", &["e2b", "mcp", "dev"]),
    ("Help", &["completions", "man", "help"]),
];

/// Examples of the most common commands, for the help without a command; the tests parse each.
const FIRST: &[&str] = &[
    "forkd run python-numpy -- python3 -c 'import numpy; print(numpy.__version__)'",
    "forkd snapshot python-numpy --tag warm --warm-up 'python=import numpy'",
    "forkd fork warm -n 10",
];

/// Examples by command, which the help, the manual pages and the reference show; the tests parse each.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("run", &["forkd run python-numpy -- python3 -c 'import numpy; print(numpy.__version__)'"]),
    ("fork", &["forkd fork warm -n 10", "forkd fork warm --ttl 10m --egress deny"]),
    ("exec", &["forkd exec SANDBOX -- ls -l /", "forkd exec SANDBOX --env A=b --workdir /tmp -- make"]),
    (
        "eval",
        &["forkd eval SANDBOX 'import os; os.getpid()'", "forkd eval SANDBOX --language bash 'uname -a'"],
    ),
    ("branch", &["forkd branch SANDBOX --tag half", "forkd fork half -n 3"]),
    ("rollback", &["forkd rollback SANDBOX half"]),
    ("cp", &["forkd cp data.csv SANDBOX:/tmp/data.csv", "forkd cp SANDBOX:/tmp/results ."]),
    ("port-forward", &["forkd port-forward SANDBOX 8080", "forkd port-forward SANDBOX 15432:5432 8080:80"]),
    ("egress", &["forkd egress SANDBOX --allow example.com:443", "forkd egress SANDBOX --egress deny"]),
    ("ttl", &["forkd ttl SANDBOX 30m", "forkd ttl SANDBOX never"]),
    ("kill", &["forkd kill SANDBOX", "forkd kill --snapshot warm"]),
    (
        "snapshot make",
        &[
            "forkd snapshot make python-numpy --tag warm --warm-up 'python=import numpy'",
            "forkd snapshot make warm --tag pandas --run 'pip install pandas'",
        ],
    ),
    ("snapshot push", &["forkd snapshot push warm registry.example/team/warm:1"]),
    ("image pull", &["forkd image pull python:3.12-slim"]),
    ("image debian", &["forkd image debian --include python3,python3-numpy --tag python-numpy"]),
    ("image build", &["forkd image build . --tag app"]),
    ("serve", &["forkd serve", "forkd serve --listen 0.0.0.0:8889 --tls-cert cert.pem --tls-key key.pem"]),
    ("token create", &["forkd token create ci --scope run --project team --max-sandboxes 20"]),
    ("completions", &["forkd completions bash", "forkd completions zsh"]),
];

/// The examples of a command, by its name without `forkd`; of forkd itself, "".
pub fn examples(path: &str) -> &'static [&'static str] {
    if path.is_empty() {
        return FIRST;
    }
    EXAMPLES.iter().find(|(name, _)| *name == path).map_or(&[], |(_, lines)| lines)
}

/// The grammar, with all of that.
pub fn command() -> Command {
    let mut root = completed(Arguments::command());
    for (path, lines) in EXAMPLES {
        root = at(root, &path.split(' ').collect::<Vec<_>>(), &|command| with_examples(command, lines));
    }
    let root = with_examples(root, FIRST);
    let groups = groups(&root);
    root.help_template(StyledStr::from(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{groups}\n{{tab}}forkd COMMAND --help shows the options of a command. Commands that print data take --json.\n\n{{options}}{{after-help}}"
    )))
}

fn with_examples(command: Command, lines: &[&str]) -> Command {
    let header = command.get_styles().get_header();
    let mut text = format!("{header}Examples:{header:#}");
    for line in lines {
        write!(text, "\n  {line}").unwrap_or_default();
    }
    command.after_help(StyledStr::from(text))
}

/// Changes the command below another one. mut_subcommand() would move it behind the others.
fn at(command: Command, path: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match path {
        [] => change(command),
        [name, below @ ..] => command.mut_subcommands(|command| match command.get_name() == *name {
            true => at(command, below, change),
            false => command,
        }),
    }
}

/// All groups, as the help shows them.
fn groups(root: &Command) -> String {
    let header = root.get_styles().get_header();
    let literal = root.get_styles().get_literal();
    let mut text = String::new();
    for (title, names) in GROUPS {
        writeln!(text, "{header}{title}:{header:#}").unwrap_or_default();
        for name in *names {
            let command = root.find_subcommand(name);
            let about = match command.and_then(Command::get_about) {
                Some(about) => about.to_string(),
                // clap adds it later.
                None => "Print this message or the help of the given command".to_owned(),
            };
            let aliases: Vec<_> = command.into_iter().flat_map(Command::get_visible_aliases).collect();
            let aliases = match aliases.is_empty() {
                true => String::new(),
                false => format!(" [alias: {}]", aliases.join(", ")),
            };
            writeln!(text, "  {literal}{name:<13}{literal:#} {about}{aliases}").unwrap_or_default();
        }
        text.push('\n');
    }
    text.pop();
    text
}

/// Adds what a shell completes arguments with.
fn completed(command: Command) -> Command {
    let is_copy = command.get_name() == "cp";
    // mut_arg() would move a positional argument behind the others.
    let command = command.mut_args(|argument| {
        if is_copy && argument.is_positional() {
            return argument.add(ArgValueCompleter::new(completion::copied));
        }
        let is_name = argument.is_positional() || argument.get_id() == "snapshot";
        let names = argument.get_value_names().unwrap_or_default();
        let words = names.iter().flat_map(|name| name.split('|'));
        let kinds: Vec<_> = words.filter_map(|word| completion::kind(word, is_name)).collect();
        if kinds.is_empty() {
            return argument;
        }
        argument.add(ArgValueCandidates::new(move || -> Vec<CompletionCandidate> {
            completion::candidates(&kinds)
        }))
    });
    command.mut_subcommands(completed)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_visible_command_is_in_one_group() {
        let root = Arguments::command();
        let visible = root.get_subcommands().filter(|command| !command.is_hide_set());
        let mut visible: Vec<_> = visible.map(Command::get_name).collect();
        visible.push("help");
        visible.sort_unstable();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        grouped.sort_unstable();
        assert_eq!(grouped, visible);
    }

    #[test]
    fn examples_are_accepted() {
        for line in EXAMPLES.iter().flat_map(|(_, lines)| lines.iter()).chain(FIRST) {
            let words = shlex::split(line).unwrap();
            if let Err(error) = command().try_get_matches_from(words) {
                panic!("{line}: {error}");
            }
        }
    }

    #[test]
    fn the_help_has_aliases_and_examples() {
        let help = command().render_help().to_string();
        let line = |name: &str| help.lines().find(|line| line.trim_start().starts_with(name));
        assert!(line("kill ").unwrap().ends_with(" [alias: rm]"), "{help}");
        assert!(line("ls ").unwrap().ends_with(" [alias: ps]"), "{help}");
        assert!(help.contains("\n\nExamples:\n  forkd run "), "{help}");
        let root = command();
        let mut arguments = root.find_subcommand("fork").unwrap().get_arguments();
        let metadata = arguments.find(|argument| argument.get_id() == "metadata").unwrap();
        assert_eq!(metadata.get_visible_aliases(), Some(vec!["label"]));
    }

    #[test]
    fn ids_tags_and_images_are_completed() {
        let completed = |path: &[&str]| {
            let root = command();
            let command = path.iter().fold(&root, |command, name| command.find_subcommand(name).unwrap());
            let arguments = command.get_arguments().filter(|it| it.get::<ArgValueCandidates>().is_some());
            arguments.map(|argument| argument.get_id().to_string()).collect::<BTreeSet<_>>()
        };
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(completed(&["exec"]), set(&["sandbox"]));
        assert_eq!(completed(&["kill"]), set(&["sandboxes", "snapshot"]));
        assert_eq!(completed(&["fork"]), set(&["source"]));
        assert_eq!(completed(&["rollback"]), set(&["sandbox", "tag"]));
        assert_eq!(completed(&["branch"]), set(&["sandbox"]), "--tag is a new name");
        assert_eq!(completed(&["snapshot", "rm"]), set(&["tags"]));
        assert_eq!(completed(&["snapshot", "make"]), set(&["from", "image", "snapshot"]));
        assert_eq!(completed(&["rmi"]), completed(&["image", "rm"]));
    }
}
