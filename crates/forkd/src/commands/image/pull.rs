//! `forkd image pull`.

use forkd_image::archive::Limits;
use forkd_image::registry::{Pull, pull};

use super::{show, store};
use crate::arguments::ImagePullOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &ImagePullOptions) -> Result<Exit, CliError> {
    let wanted = Pull {
        reference: options.reference.clone(),
        name: options.keep.name.clone(),
        min_mib: options.keep.size,
        limits: Limits::default(),
        credentials: None,
    };
    let progress = Progress::new();
    let image = pull(&store()?, &wanted, &progress)?;
    progress.finish();
    show(&image, &options.output)?;
    Ok(Exit::Success)
}
