//! The image of the usual template: Debian's packages, with a pip that installs anywhere, and a Node.js that is newer than Debian's.

use std::io;

use forkd_api::library::BuildImage;
use forkd_client::ClientError;
use forkd_machine::Progress as _;
use forkd_source::context::Context;

use crate::arguments::DaemonOptions;
use crate::commands::image::debian;
use crate::copy::written;
use crate::error::CliError;
use crate::library;

/// An image that a Dockerfile makes of Debian's packages.
struct Recipe {
    image: &'static str,
    /// What the Dockerfile begins with.
    debian: &'static str,
    dockerfile: &'static str,
}

const USUAL: Recipe = Recipe {
    image: "forkd-e2b:latest",
    debian: "forkd-e2b/debian:latest",
    dockerfile: include_str!("Dockerfile"),
};
const DEBIAN_NODE: Recipe = Recipe {
    image: "forkd-e2b:debian-node",
    debian: "forkd-e2b/debian-nodejs:latest",
    dockerfile: include_str!("Dockerfile.debian-node"),
};
const PACKAGES: [&str; 16] = [
    "python3",
    "python-is-python3",
    "python3-pip",
    "python3-venv",
    "python3-numpy",
    "python3-pandas",
    "python3-matplotlib",
    "python3-requests",
    "python3-pil",
    "python3-sklearn",
    "git",
    "curl",
    "ca-certificates",
    "iproute2",
    "procps",
    "sudo",
];
const HINT: &str = "Node.js comes from PyPI, over the network of the daemon's host; where PyPI cannot be reached, \
                    forkd e2b setup --debian-node takes Debian's Node.js 18, without TypeScript";

#[derive(Debug, thiserror::Error)]
#[error("cannot add Node.js 24 to the image")]
struct NodeError(#[source] ClientError);

/// Sees to it that there is the image. Returns its name.
pub fn ensure(daemon: &DaemonOptions, debian_node: bool) -> Result<&'static str, CliError> {
    if debian_node {
        debian::ensure(daemon, DEBIAN_NODE.debian, &[&PACKAGES[..], &["nodejs"]].concat())?;
        return build(daemon, &DEBIAN_NODE);
    }
    debian::ensure(daemon, USUAL.debian, &PACKAGES)?;
    build(daemon, &USUAL).map_err(|error| match error {
        CliError::Client(error) => CliError::of_verb_with(NodeError(error), Some(HINT)),
        error => error,
    })
}

/// What an earlier build has made of the same packages is used again.
fn build(daemon: &DaemonOptions, recipe: &Recipe) -> Result<&'static str, CliError> {
    let Recipe { image, dockerfile, .. } = *recipe;
    let directory =
        tempfile::tempdir().map_err(|source| CliError::Io("make a temporary directory", source))?;
    let context = Context::open(directory.path())?;
    library::change(daemon, async |client, progress| {
        progress.step("sending the build context");
        let wanted = BuildImage { name: Some(image.to_owned()), host_certs: true, ..BuildImage::default() };
        let files = [("Dockerfile".to_owned(), dockerfile.as_bytes().to_vec())];
        let archive = written(move |pieces| context.write_whole(&files, pieces).map_err(io::Error::other));
        client.build_image(&wanted, archive, |told| progress.told(&told)).await?;
        Ok(image)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dockerfiles_stand_on_the_packages() {
        for recipe in [USUAL, DEBIAN_NODE] {
            let from = recipe.dockerfile.lines().find_map(|line| line.strip_prefix("FROM "));
            assert_eq!(from, Some(recipe.debian));
        }
    }

    #[test]
    fn pip_may_install_in_both() {
        let divert = |recipe: &Recipe| {
            recipe.dockerfile.lines().find(|line| line.contains("dpkg-divert")).map(str::to_owned)
        };
        assert!(divert(&USUAL).is_some());
        assert_eq!(divert(&USUAL), divert(&DEBIAN_NODE));
    }
}
