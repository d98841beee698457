//! `forkd image …`. Where it is done is said in `library.rs`.

pub mod build;
pub mod debian;
pub mod declared;
pub mod import;
pub mod inspect;
pub mod ls;
pub mod prune;
pub mod pull;
pub mod rm;
pub mod share;

use forkd_api::library::Image;

use super::print_value;
use crate::arguments::Output;
use crate::error::CliError;
use crate::table::plain;

/// Prints the id of a new image, or everything as JSON.
fn show(image: &Image, output: &Output) -> Result<(), CliError> {
    print_value(output, image, || format!("{}\n", plain(digits(&image.summary.id))))
}

/// An id without the name of its digest, as commands take and print it.
fn digits(id: &str) -> &str {
    id.strip_prefix("sha256:").unwrap_or(id)
}
