//! `forkd image inspect`.

use super::store;
use crate::arguments::ImageInspectOptions;
use crate::commands::print_json;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &ImageInspectOptions) -> Result<Exit, CliError> {
    print_json(&store()?.find(&options.image)?)?;
    Ok(Exit::Success)
}
