//! `forkd kernel …`. Where it is done is said in `library.rs`.

pub mod add;
pub mod default;
pub mod ls;
pub mod rm;

use forkd_api::library::Kernel;

use super::print_value;
use crate::arguments::Output;
use crate::error::CliError;
use crate::table::plain;

/// Prints the id, or everything as JSON.
fn show(kernel: &Kernel, output: &Output) -> Result<(), CliError> {
    print_value(output, kernel, || format!("{}\n", plain(&kernel.name)))
}
