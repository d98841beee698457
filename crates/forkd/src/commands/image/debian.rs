//! `forkd image debian`.

use forkd_api::library::DebianImage;
use forkd_client::Client;
use forkd_daemon::library_view as view;
use forkd_image::debian::{Debian, debian};

use super::show;
use crate::arguments::ImageDebianOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library::{self, images_here};
use crate::progress::Progress;

pub fn run(options: &ImageDebianOptions) -> Result<Exit, CliError> {
    let ImageDebianOptions { suite, include, mirror, keep, daemon, output } = options;
    let there = async |client: &Client, progress: &Progress| {
        let wanted = DebianImage {
            suite: suite.clone(),
            include: include.clone(),
            mirror: mirror.clone(),
            name: keep.name.as_ref().map(ToString::to_string),
            size_mib: keep.size,
        };
        Ok(client.debian_image(&wanted, |told| progress.told(&told)).await?)
    };
    let here = || {
        let wanted = Debian {
            suite: suite.clone(),
            include: include.clone(),
            mirror: mirror.clone(),
            name: keep.name.clone(),
            min_mib: keep.size,
        };
        Ok(view::image(&debian(&images_here()?, &wanted, &Progress::new())?))
    };
    show(&library::change(daemon, there, here)?, output)?;
    Ok(Exit::Success)
}
