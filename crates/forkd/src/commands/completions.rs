//! `forkd completions SHELL`: a script with which the shell asks forkd itself, so that ids, tags and images are completed, too.

use clap_complete::env::Shells;

use super::print;
use crate::arguments::CompletionsOptions;
use crate::error::CliError;
use crate::exit::Exit;

/// The variable with which the shell calls forkd to complete a line (`main.rs`).
const VARIABLE: &str = "COMPLETE";

pub fn run(options: &CompletionsOptions) -> Result<Exit, CliError> {
    let failed = |error| CliError::Io("write the completion script", error);
    let shells = Shells::builtins();
    let name = options.shell.to_string();
    let shell = shells.completer(&name).ok_or_else(|| failed(std::io::ErrorKind::Unsupported.into()))?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "forkd", "forkd", "forkd", &mut script).map_err(failed)?;
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
