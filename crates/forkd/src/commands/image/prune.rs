//! `forkd image prune`.

use forkd_api::library::{PruneImages, PrunedImages};

use crate::arguments::ImagePruneOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::moment::bytes;

pub fn run(options: &ImagePruneOptions) -> Result<Exit, CliError> {
    let wanted = PruneImages { keep_mib: options.keep, images: options.images };
    let PrunedImages { steps, images, freed_bytes } =
        library::change(&options.daemon, async |client, _| Ok(client.prune_images(&wanted).await?))?;
    if options.output.json {
        print_json(&PrunedImages { steps, images, freed_bytes })?;
    } else {
        let freed = bytes(freed_bytes);
        say(&format!("{steps} steps and {images} images are removed; freed {freed}."));
    }
    Ok(Exit::Success)
}
