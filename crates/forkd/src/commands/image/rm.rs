//! `forkd image rm`.

use serde::Serialize;

use super::store;
use crate::arguments::ImageRmOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

#[derive(Serialize)]
struct Removed<'a> {
    image: &'a str,
    freed: u64,
}

pub fn run(options: &ImageRmOptions) -> Result<Exit, CliError> {
    let image = &options.image;
    let freed = store()?.remove(image)?;
    if options.output.json {
        print_json(&Removed { image, freed })?;
    } else {
        say(&format!("{image} is removed; {} MiB are free again.", freed >> 20));
    }
    Ok(Exit::Success)
}
