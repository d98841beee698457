//! `forkd completions SHELL`.

use clap::CommandFactory;

use super::print;
use crate::arguments::{Arguments, CompletionsOptions};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &CompletionsOptions) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Arguments::command(), "forkd", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Success)
}
