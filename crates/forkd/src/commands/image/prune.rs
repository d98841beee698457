//! `forkd image prune`.

use forkd_host::home;
use forkd_image::builds::BuildCache;
use forkd_image::images::ImageStore;
use serde::Serialize;

use crate::arguments::ImagePruneOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;

#[derive(Serialize)]
struct Removed {
    steps: usize,
    images: usize,
    freed: u64,
}

pub fn run(options: &ImagePruneOptions) -> Result<Exit, CliError> {
    let library = home::library()?;
    let store = ImageStore::new(&library);
    let mut removed = Removed { steps: 0, images: 0, freed: 0 };
    if options.images {
        for image in store.list()?.iter().filter(|image| image.names.is_empty()) {
            removed.freed += store.remove(&image.id().hex())?;
            removed.images += 1;
        }
    }
    let pruned = BuildCache::new(&library).prune(options.keep << 20, &store)?;
    removed.steps = pruned.steps;
    removed.freed += pruned.freed;
    if options.output.json {
        print_json(&removed)?;
    } else {
        let (steps, images, freed) = (removed.steps, removed.images, removed.freed >> 20);
        say(&format!("{steps} steps and {images} images are removed; {freed} MiB are free again."));
    }
    Ok(Exit::Success)
}
