//! `forkd kernel default`.

use super::{show, store};
use crate::arguments::KernelDefaultOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

/// Without a kernel, shows the default; where there is none yet, that fetches it.
pub fn run(options: &KernelDefaultOptions) -> Result<Exit, CliError> {
    let store = store()?;
    let kernel = match &options.kernel {
        Some(kernel) => store.set_default(kernel)?,
        None => store.ensure_default(&Progress::new())?,
    };
    show(&kernel, &options.output)?;
    Ok(Exit::Success)
}
