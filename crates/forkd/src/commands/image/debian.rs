//! `forkd image debian`.

use forkd_api::library::{DebianImage, Image};
use forkd_client::Client;
use forkd_daemon::library_view as view;
use forkd_image::debian::{Debian, debian};
use forkd_image::images::ImageError;

use super::show;
use crate::arguments::{DaemonOptions, ImageDebianOptions};
use crate::error::CliError;
use crate::exit::Exit;
use crate::library::{self, images_here};
use crate::progress::Progress;

/// What images are made of that forkd makes by itself.
const SUITE: &str = "bookworm";

pub fn run(options: &ImageDebianOptions) -> Result<Exit, CliError> {
    let ImageDebianOptions { suite, include, mirror, keep, daemon, output } = options;
    let wanted = Debian {
        suite: suite.clone(),
        include: include.clone(),
        mirror: mirror.clone(),
        name: keep.name.clone(),
        min_mib: keep.size,
    };
    show(&make(daemon, &wanted)?, output)?;
    Ok(Exit::Success)
}

fn make(daemon: &DaemonOptions, wanted: &Debian) -> Result<Image, CliError> {
    let there = async |client: &Client, progress: &Progress| {
        let wanted = DebianImage {
            suite: wanted.suite.clone(),
            include: wanted.include.clone(),
            mirror: wanted.mirror.clone(),
            name: wanted.name.as_ref().map(ToString::to_string),
            size_mib: wanted.min_mib,
        };
        Ok(client.debian_image(&wanted, |told| progress.told(&told)).await?)
    };
    let here = || Ok(view::image(&debian(&images_here()?, wanted, &Progress::new())?));
    library::change(daemon, there, here)
}

/// Sees to it that there is an image of this name. If it has to be made, it gets these packages.
pub fn ensure(daemon: &DaemonOptions, name: &str, packages: &[&str]) -> Result<(), CliError> {
    match library::image(daemon, name) {
        Err(CliError::Client(error)) if error.is_not_found() => {}
        Err(CliError::StoredImage(ImageError::Unknown(_))) => {}
        found => return found.map(drop),
    }
    let unknown = || CliError::StoredImage(ImageError::Unknown(name.to_owned()));
    let wanted = Debian {
        suite: SUITE.into(),
        include: packages.iter().map(|package| (*package).to_owned()).collect(),
        mirror: None,
        name: Some(name.parse().map_err(|_| unknown())?),
        min_mib: None,
    };
    make(daemon, &wanted).map(drop)
}
