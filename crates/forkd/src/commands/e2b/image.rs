//! The image of the usual template: Debian's packages, and a Node.js that is newer than Debian's.

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

const IMAGE: &str = "forkd-e2b:latest";
/// What its Dockerfile begins with.
const DEBIAN: &str = "forkd-e2b/debian:latest";
const DEBIAN_NODE: &str = "forkd-e2b/debian-nodejs:latest";
const DOCKERFILE: &str = include_str!("Dockerfile");
const PACKAGES: [&str; 15] = [
    "python3",
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
        debian::ensure(daemon, DEBIAN_NODE, &[&PACKAGES[..], &["nodejs"]].concat())?;
        return Ok(DEBIAN_NODE);
    }
    debian::ensure(daemon, DEBIAN, &PACKAGES)?;
    match add_node(daemon) {
        Ok(()) => Ok(IMAGE),
        Err(CliError::Client(error)) => Err(CliError::of_verb_with(NodeError(error), Some(HINT))),
        Err(error) => Err(error),
    }
}

/// What an earlier build has made of the same packages is used again.
fn add_node(daemon: &DaemonOptions) -> Result<(), CliError> {
    let directory =
        tempfile::tempdir().map_err(|source| CliError::Io("make a temporary directory", source))?;
    let context = Context::open(directory.path())?;
    library::change(daemon, async |client, progress| {
        progress.step("sending the build context");
        let wanted = BuildImage { name: Some(IMAGE.to_owned()), host_certs: true, ..BuildImage::default() };
        let files = [("Dockerfile".to_owned(), DOCKERFILE.as_bytes().to_vec())];
        let archive = written(move |pieces| context.write_whole(&files, pieces).map_err(io::Error::other));
        client.build_image(&wanted, archive, |told| progress.told(&told)).await?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dockerfile_stands_on_the_packages() {
        let from = DOCKERFILE.lines().find_map(|line| line.strip_prefix("FROM "));
        assert_eq!(from, Some(DEBIAN));
    }
}
