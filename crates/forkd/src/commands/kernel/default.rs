//! `forkd kernel default`.

use forkd_api::library::{AddKernel, ChooseKernel};

use super::show;
use crate::arguments::KernelDefaultOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;

/// Without a kernel, shows the default; if no kernel is installed yet, that fetches one.
pub fn run(options: &KernelDefaultOptions) -> Result<Exit, CliError> {
    let kernel = match &options.kernel {
        Some(kernel) => {
            let wanted = ChooseKernel { kernel: kernel.clone() };
            library::change(&options.daemon, async |client, _| Ok(client.choose_kernel(&wanted).await?))?
        }
        None => match library::kernels(&options.daemon)?.into_iter().find(|kernel| kernel.default) {
            Some(kernel) => kernel,
            None => library::change(&options.daemon, async |client, progress| {
                let wanted = AddKernel { default: true, ..AddKernel::default() };
                Ok(client.add_kernel(&wanted, |told| progress.told(&told)).await?)
            })?,
        },
    };
    show(&kernel, &options.output)?;
    Ok(Exit::Success)
}
