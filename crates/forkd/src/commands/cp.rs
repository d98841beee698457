//! `forkd cp`.

use crate::arguments::CpOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(_options: &CpOptions) -> Result<Exit, CliError> {
    Err(CliError::CopySides)
}
