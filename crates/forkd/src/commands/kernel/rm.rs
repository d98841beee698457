//! `forkd kernel rm`.

use super::{show, store};
use crate::arguments::KernelRmOptions;
use crate::commands::say;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &KernelRmOptions) -> Result<Exit, CliError> {
    let kernel = store()?.remove(&options.kernel, options.force)?;
    if options.output.json {
        show(&kernel, &options.output)?;
    } else {
        say(&format!("Kernel {} is removed.", kernel.metadata.id));
    }
    Ok(Exit::Success)
}
