//! `forkd kernel rm`.

use super::show;
use crate::arguments::KernelRmOptions;
use crate::commands::say;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::table::plain;

pub fn run(options: &KernelRmOptions) -> Result<Exit, CliError> {
    let kernel = library::remove(&options.daemon, async |remover| {
        remover.kernel(&options.kernel, options.force).await
    })?;
    if options.output.json {
        show(&kernel, &options.output)?;
    } else {
        say(&format!("Kernel {} is removed.", plain(&kernel.name)));
    }
    Ok(Exit::Success)
}
