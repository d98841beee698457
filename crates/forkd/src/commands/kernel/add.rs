//! `forkd kernel add`.

use forkd_image::kernels::KernelSource;

use super::{show, store};
use crate::arguments::KernelAddOptions;
use crate::commands::say;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &KernelAddOptions) -> Result<Exit, CliError> {
    let source = match &options.path {
        Some(kernel) => KernelSource::Path { kernel: kernel.clone(), modules: options.modules.clone() },
        None if options.host => KernelSource::Host { root: "/".into(), version: options.version.clone() },
        None => KernelSource::Distribution,
    };
    let store = store()?;
    let progress = Progress::new();
    let mut kernel = store.add(&source, &progress)?;
    progress.finish();
    if options.default {
        kernel = store.set_default(&kernel.metadata.id)?;
    }
    if !kernel.metadata.missing.is_empty() {
        say(&format!("forkd: warning: this kernel lacks {}", kernel.metadata.missing.join(", ")));
    }
    show(&kernel, &options.output)?;
    Ok(Exit::Success)
}
