//! `forkd machine shell`.

use super::open;
use crate::arguments::ShellOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &ShellOptions) -> Result<Exit, CliError> {
    let machine = open(&options.which)?;
    let status = machine.shell()?.status().map_err(|error| CliError::Io("start ssh", error))?;
    Ok(status.into())
}
