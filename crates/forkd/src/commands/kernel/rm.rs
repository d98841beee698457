//! `forkd kernel rm`.

use super::show;
use crate::arguments::KernelRmOptions;
use crate::commands::{asynchronously, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::table::plain;

pub fn run(options: &KernelRmOptions) -> Result<Exit, CliError> {
    let removing = library::remove_kernel(&options.daemon, &options.kernel, options.force);
    let kernel = asynchronously(removing)?;
    if options.output.json {
        show(&kernel, &options.output)?;
    } else {
        say(&format!("Kernel {} is removed.", plain(&kernel.name)));
    }
    Ok(Exit::Success)
}
