//! `forkd image …`.

pub mod build;
pub mod debian;
pub mod import;
pub mod inspect;
pub mod ls;
pub mod prune;
pub mod pull;
pub mod rm;

use forkd_host::home;
use forkd_image::images::{Image, ImageStore};

use super::{print, print_json};
use crate::arguments::Output;
use crate::error::CliError;

fn store() -> Result<ImageStore, CliError> {
    Ok(ImageStore::new(&home::library()?))
}

/// Prints the id of a new image, or everything as JSON.
fn show(image: &Image, output: &Output) -> Result<(), CliError> {
    if output.json { print_json(image) } else { print(&format!("{}\n", image.id().hex())) }
}
