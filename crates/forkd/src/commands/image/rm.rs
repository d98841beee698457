//! `forkd image rm`.

use forkd_api::library::RemovedImage;

use crate::arguments::ImageRmOptions;
use crate::commands::{print_json, say};
use crate::error::{self, CliError};
use crate::exit::Exit;
use crate::library;
use crate::moment::bytes;

/// One that cannot be removed does not keep the others from it.
pub fn run(options: &ImageRmOptions) -> Result<Exit, CliError> {
    let (mut all, mut exit) = (Vec::new(), Exit::Success);
    library::remove(&options.daemon, async |remover| {
        for image in &options.images {
            match remover.image(image).await {
                Ok(removed) => {
                    if !options.output.json {
                        say(&outcome(image, &removed));
                    }
                    all.push(removed);
                }
                Err(error) => {
                    error::print(&error);
                    exit = Exit::Failure;
                }
            }
        }
        Ok(())
    })?;
    if options.output.json {
        print_json(&all)?;
    }
    Ok(exit)
}

/// `forkd rmi`.
pub fn short(options: &ImageRmOptions) -> Result<Exit, CliError> {
    say("note: forkd rmi used to remove snapshots; these are removed by: forkd snapshot rm");
    run(options)
}

fn outcome(image: &str, removed: &RemovedImage) -> String {
    match removed.removed {
        true => format!("{image} is removed; freed {}.", bytes(removed.freed_bytes)),
        false => format!("The name {image} is removed; the image has others."),
    }
}
