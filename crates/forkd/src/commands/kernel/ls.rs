//! `forkd kernel ls`.

use forkd_image::kernels::StoredKernel;

use super::store;
use crate::arguments::LsOptions;
use crate::commands::{print, print_json};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &LsOptions) -> Result<Exit, CliError> {
    let kernels = store()?.list()?;
    if options.output.json {
        print_json(&kernels)?;
    } else {
        print(&render(&kernels))?;
    }
    Ok(Exit::Success)
}

fn render(kernels: &[StoredKernel]) -> String {
    let mut text = format!("{:<40} {:<24} {:>7} DEFAULT\n", "ID", "VERSION", "MODULES");
    for kernel in kernels {
        let metadata = &kernel.metadata;
        let default = if kernel.is_default { "yes" } else { "" };
        let line =
            format!("{:<40} {:<24} {:>7} {default}", metadata.id, metadata.version, metadata.modules.len());
        text += &format!("{}\n", line.trim_end());
    }
    text
}
