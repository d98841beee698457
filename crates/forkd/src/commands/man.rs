//! `forkd man DIRECTORY`.

use std::fs;

use clap::CommandFactory;

use super::say;
use crate::arguments::{Arguments, ManOptions};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &ManOptions) -> Result<Exit, CliError> {
    let failed = |error| CliError::Io("write the manual pages", error);
    fs::create_dir_all(&options.directory).map_err(failed)?;
    clap_mangen::generate_to(Arguments::command(), &options.directory).map_err(failed)?;
    say(&format!("The manual pages are in {}.", options.directory.display()));
    Ok(Exit::Success)
}
