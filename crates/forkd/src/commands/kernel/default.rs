//! `forkd kernel default`.

use forkd_api::library::{AddKernel, ChooseKernel};
use forkd_client::Client;
use forkd_daemon::library_view as view;

use super::show;
use crate::arguments::KernelDefaultOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library::{self, kernels_here};
use crate::progress::Progress;

/// Without a kernel, shows the default; where there is none yet, that fetches it.
pub fn run(options: &KernelDefaultOptions) -> Result<Exit, CliError> {
    let kernel = match &options.kernel {
        Some(kernel) => {
            let wanted = ChooseKernel { kernel: kernel.clone() };
            let there = async |client: &Client, _: &Progress| Ok(client.choose_kernel(&wanted).await?);
            library::change(&options.daemon, there, || {
                Ok(view::kernel(&kernels_here()?.set_default(kernel)?))
            })?
        }
        None => match library::kernels(&options.daemon)?.into_iter().find(|kernel| kernel.default) {
            Some(kernel) => kernel,
            None => {
                let there = async |client: &Client, progress: &Progress| {
                    let wanted = AddKernel { default: true, ..AddKernel::default() };
                    Ok(client.add_kernel(&wanted, |told| progress.told(&told)).await?)
                };
                let here = || Ok(view::kernel(&kernels_here()?.ensure_default(&Progress::new())?));
                library::change(&options.daemon, there, here)?
            }
        },
    };
    show(&kernel, &options.output)?;
    Ok(Exit::Success)
}
