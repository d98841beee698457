//! `forkd image debian`.

use forkd_api::library::{DebianImage, Image, ImageSource};

use super::show;
use crate::arguments::{DaemonOptions, ImageDebianOptions};
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;

/// The sources of images that forkd makes automatically.
const SUITE: &str = "bookworm";

pub fn run(options: &ImageDebianOptions) -> Result<Exit, CliError> {
    let ImageDebianOptions { suite, include, mirror, keep, daemon, output } = options;
    let wanted = DebianImage {
        suite: suite.clone(),
        include: include.clone(),
        mirror: mirror.clone(),
        name: keep.name.as_ref().map(ToString::to_string),
        size_mib: keep.size,
    };
    show(&make(daemon, &wanted)?, output)?;
    Ok(Exit::Success)
}

pub fn make(daemon: &DaemonOptions, wanted: &DebianImage) -> Result<Image, CliError> {
    library::change(daemon, async |client, progress| {
        Ok(client.debian_image(wanted, |told| progress.told(&told)).await?)
    })
}

/// Sees to it that there is an image of this name with these packages.
pub fn ensure(daemon: &DaemonOptions, name: &str, packages: &[&str]) -> Result<(), CliError> {
    match library::image(daemon, name) {
        Err(CliError::Client(error)) if error.is_not_found() => {}
        Err(error) => return Err(error),
        Ok(found) if is_of(&found.source, packages) => return Ok(()),
        // An earlier version had others.
        Ok(_) => {}
    }
    let wanted = DebianImage {
        suite: SUITE.into(),
        include: packages.iter().map(|package| (*package).to_owned()).collect(),
        mirror: None,
        name: Some(name.to_owned()),
        size_mib: None,
    };
    make(daemon, &wanted).map(drop)
}

fn is_of(source: &ImageSource, packages: &[&str]) -> bool {
    matches!(source, ImageSource::Debian { suite, include, .. } if suite == SUITE && include == packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_other_packages_is_another_one() {
        let of = |suite: &str, include: &[&str]| ImageSource::Debian {
            suite: suite.into(),
            include: include.iter().map(|&package| package.into()).collect(),
            mirror: Some("http://mirror".into()),
        };
        assert!(is_of(&of(SUITE, &["a", "b"]), &["a", "b"]));
        assert!(!is_of(&of(SUITE, &["a"]), &["a", "b"]));
        assert!(!is_of(&of("trixie", &["a", "b"]), &["a", "b"]));
        assert!(!is_of(&ImageSource::Build, &[]));
    }
}
