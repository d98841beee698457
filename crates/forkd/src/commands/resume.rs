//! `forkd resume`.

use super::each;
use crate::arguments::SandboxesOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &SandboxesOptions) -> Result<Exit, CliError> {
    each(options, async |client, id| client.resume(id).await)
}
