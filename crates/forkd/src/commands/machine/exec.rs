//! `forkd machine exec -- COMMAND`.

use std::time::Duration;

use super::open;
use crate::arguments::ExecOptions;
use crate::error::CliError;
use crate::exit::Exit;

/// What ssh exits with when it failed itself; a command may exit with it too.
const SSH_FAILED: u8 = 255;

pub fn run(options: &ExecOptions) -> Result<Exit, CliError> {
    let machine = open(&options.which)?;
    let mut command = machine.exec(&options.command)?;
    let status = command.status().map_err(|error| CliError::Io("start ssh", error))?;
    let exit = Exit::from(status);
    if exit == Exit::Other(SSH_FAILED)
        && let Err(error) = machine.ping(Duration::from_secs(5))
    {
        return Err(CliError::Lost { name: machine.name, reason: error.to_string() });
    }
    Ok(exit)
}
