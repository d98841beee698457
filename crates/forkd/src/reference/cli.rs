//! docs/reference/cli.md, from the grammar.

use std::fmt::Write;

use clap::{Arg, ArgAction, Command};

use super::{cell, check};
use crate::arguments::{command, examples};

const HEAD: &str = "# The command line

`make reference` writes this page from the grammar of `forkd`. `forkd COMMAND --help` says the same in a terminal, and `forkd man
DIRECTORY` writes manual pages.

Data goes to stdout and everything else to stderr. Commands that print data take `--json`. Exit codes: 0 success, 1 failure, 2 invalid
arguments; `exec`, `run` and `shell` exit with the status of the command that they run.
";

/// The heading in the help, and on this page, of options that say which daemon is asked.
const DAEMON: &str = "Daemon";

#[test]
fn the_page_of_the_command_line_is_current() {
    let mut root = command();
    root.build();
    let commands = commands(&root, "forkd");
    let asks = commands.iter().find(|(_, command)| arguments(command).any(is_of_daemon));
    let (_, asks) = asks.expect("a command that asks a daemon");
    let mut text = HEAD.to_owned() + "\n| command | |\n|---|---|\n";
    for (path, command) in &commands {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(text, "| [`{path}`](#{}) | {} |", path.replace(' ', "-"), cell(&about)).unwrap();
    }
    text += "\n## Daemon options\n\nCommands that ask a daemon have these.\n\n";
    text += &table(&arguments(asks).filter(|argument| is_of_daemon(argument)).collect::<Vec<_>>());
    for (path, command) in &commands {
        text += &section(path, command);
    }
    check("cli.md", &text);
}

/// All commands that do something, in the order of the help.
fn commands<'a>(parent: &'a Command, path: &str) -> Vec<(String, &'a Command)> {
    let mut found = Vec::new();
    for command in parent.get_subcommands() {
        if command.is_hide_set() || command.get_name() == "help" {
            continue;
        }
        let path = format!("{path} {}", command.get_name());
        if !command.is_subcommand_required_set() {
            found.push((path.clone(), command));
        }
        found.extend(commands(command, &path));
    }
    found
}

fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    // clap's own --help and --version, not `kernel add --version`.
    let usual = |argument: &&Arg| {
        use ArgAction::{Help, HelpLong, HelpShort, Version};
        matches!(argument.get_action(), Help | HelpLong | HelpShort | Version)
    };
    command.get_arguments().filter(move |argument| !argument.is_hide_set() && !usual(argument))
}

fn is_of_daemon(argument: &Arg) -> bool {
    argument.get_help_heading() == Some(DAEMON)
}

fn section(path: &str, command: &Command) -> String {
    let mut text = format!("\n## {path}\n\n");
    let about = command.get_long_about().or_else(|| command.get_about());
    writeln!(text, "{}\n", about.map(ToString::to_string).unwrap_or_default()).unwrap();
    let usage = command.clone().render_usage().to_string();
    writeln!(text, "```text\n{}\n```", usage.trim_start_matches("Usage: ")).unwrap();
    let aliases: Vec<_> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    if !aliases.is_empty() {
        writeln!(text, "\nAlias: {}.", aliases.join(", ")).unwrap();
    }
    let (daemon, own): (Vec<_>, Vec<_>) = arguments(command).partition(|argument| is_of_daemon(argument));
    if !own.is_empty() {
        text += "\n";
        text += &table(&own);
    }
    if !daemon.is_empty() {
        text += "\nAnd the [daemon options](#daemon-options).\n";
    }
    let examples = examples(path.strip_prefix("forkd ").unwrap_or_default());
    if !examples.is_empty() {
        write!(text, "\n```sh\n{}\n```\n", examples.join("\n")).unwrap();
    }
    text
}

fn table(arguments: &[&Arg]) -> String {
    let mut text = "| option | |\n|---|---|\n".to_owned();
    for argument in arguments {
        writeln!(text, "| `{}` | {} |", cell(&spelling(argument)), cell(&meaning(argument))).unwrap();
    }
    text
}

/// As in `-n, --n <COUNT>`.
fn spelling(argument: &Arg) -> String {
    let long = argument.to_string();
    match argument.get_short() {
        Some(short) if !argument.is_positional() && argument.get_long().is_some() => {
            format!("-{short}, {long}")
        }
        _ => long,
    }
}

fn meaning(argument: &Arg) -> String {
    let help = argument.get_long_help().or_else(|| argument.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let (mut text, default) = help
        .split_once(" [default: ")
        .map_or((help.clone(), None), |(text, default)| (text.to_owned(), Some(default)));
    let values: Vec<_> = argument
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() && !argument.is_hide_possible_values_set() && argument.get_action().takes_values() {
        let stop = if text.ends_with('.') { "" } else { "." };
        write!(text, "{stop} One of {}.", values.join(", ")).unwrap();
    }
    if let Some(default) = default {
        write!(text, " [default: {default}").unwrap();
    }
    let defaults: Vec<_> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if !defaults.is_empty() && !argument.is_hide_default_value_set() && argument.get_action().takes_values() {
        write!(text, " [default: {}]", defaults.join(" ")).unwrap();
    }
    for alias in argument.get_visible_aliases().unwrap_or_default() {
        write!(text, " [alias: `--{alias}`]").unwrap();
    }
    if let Some(variable) = argument.get_env() {
        write!(text, " [env: {}]", variable.to_string_lossy()).unwrap();
    }
    text
}
