//! `forkd image prune`.

use forkd_api::library::{PruneImages, PrunedImages};
use forkd_client::Client;
use forkd_host::home;
use forkd_image::builds::BuildCache;
use forkd_image::images::ImageStore;

use crate::arguments::ImagePruneOptions;
use crate::commands::{print_json, say};
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;
use crate::moment::bytes;
use crate::progress::Progress;

pub fn run(options: &ImagePruneOptions) -> Result<Exit, CliError> {
    let wanted = PruneImages { keep_mib: options.keep, images: options.images };
    let there = async |client: &Client, _: &Progress| Ok(client.prune_images(&wanted).await?);
    let PrunedImages { steps, images, freed_bytes } =
        library::change(&options.daemon, there, || prune_here(wanted))?;
    if options.output.json {
        print_json(&PrunedImages { steps, images, freed_bytes })?;
    } else {
        let freed = bytes(freed_bytes);
        say(&format!("{steps} steps and {images} images are removed; {freed} are free again."));
    }
    Ok(Exit::Success)
}

fn prune_here(wanted: PruneImages) -> Result<PrunedImages, CliError> {
    let library = home::library()?;
    let store = ImageStore::new(&library);
    // First, because it is refused while a build is running, which may stand on an image without a name.
    let pruned = BuildCache::new(&library).prune(wanted.keep_mib.saturating_mul(1 << 20), &store)?;
    let mut all = PrunedImages { steps: pruned.steps as u64, images: 0, freed_bytes: pruned.freed };
    if wanted.images {
        for image in store.list()?.iter().filter(|image| image.names.is_empty()) {
            all.freed_bytes += store.remove(&image.id().hex())?;
            all.images += 1;
        }
    }
    Ok(all)
}
