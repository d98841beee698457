//! `forkd image inspect`.

use crate::arguments::ImageInspectOptions;
use crate::commands::print_json;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;

pub fn run(options: &ImageInspectOptions) -> Result<Exit, CliError> {
    print_json(&library::image(&options.daemon, &options.image)?)?;
    Ok(Exit::Success)
}
