//! `forkd kernel …`.

pub mod add;
pub mod default;
pub mod ls;
pub mod rm;

use forkd_host::home;
use forkd_image::kernels::{KernelStore, StoredKernel};

use super::{print, print_json};
use crate::arguments::Output;
use crate::error::CliError;

fn store() -> Result<KernelStore, CliError> {
    Ok(KernelStore::new(&home::library()?))
}

/// Prints the id, or everything as JSON.
fn show(kernel: &StoredKernel, output: &Output) -> Result<(), CliError> {
    if output.json { print_json(kernel) } else { print(&format!("{}\n", kernel.metadata.id)) }
}
