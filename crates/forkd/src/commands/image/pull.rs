//! `forkd image pull`.

use forkd_api::library::{Credentials, PullImage};
use forkd_client::{Address, Client};
use forkd_source::credentials::user_credentials;

use super::show;
use crate::arguments::ImagePullOptions;
use crate::error::CliError;
use crate::exit::Exit;
use crate::library;

pub fn run(options: &ImagePullOptions) -> Result<Exit, CliError> {
    let (reference, keep) = (&options.reference, &options.keep);
    let image = library::change(&options.daemon, async |client, progress| {
        let wanted = PullImage {
            reference: reference.clone(),
            name: keep.name.as_ref().map(ToString::to_string),
            size_mib: keep.size,
            credentials: credentials(client, reference)?,
        };
        Ok(client.pull_image(&wanted, |told| progress.told(&told)).await?)
    })?;
    show(&image, &options.output)?;
    Ok(Exit::Success)
}

/// What this user's Docker config file, or a helper that it names, has for a registry, for a daemon that pulls in this user's name. It
/// does not go through a network in the clear.
pub fn credentials(client: &Client, reference: &str) -> Result<Option<Credentials>, CliError> {
    if !client.address().is_local() && !matches!(client.address(), Address::Tcp { tls: true, .. }) {
        return Ok(None);
    }
    let own = user_credentials(reference)?;
    Ok(own.map(|own| Credentials { username: own.username, password: own.password }))
}
