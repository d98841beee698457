//! `forkd image debian`.

use forkd_image::debian::{Debian, debian};

use super::{show, store};
use crate::arguments::ImageDebianOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;

pub fn run(options: &ImageDebianOptions) -> Result<Exit, CliError> {
    let wanted = Debian {
        suite: options.suite.clone(),
        include: options.include.clone(),
        mirror: options.mirror.clone(),
        name: options.keep.name.clone(),
        min_mib: options.keep.size,
    };
    let progress = Progress::new();
    let image = debian(&store()?, &wanted, &progress)?;
    progress.finish();
    show(&image, &options.output)?;
    Ok(Exit::Success)
}
