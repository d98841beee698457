//! `forkd e2b env`: what E2B's clients have to know of this daemon, as a shell takes it.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;

use forkd_client::{Address, Client, ClientError};
use forkd_host::home;

use super::trust;
use crate::arguments::{E2bEnvOptions, USUAL_LISTEN};
use crate::commands::{asynchronously, print, print_json, say};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;

/// The right shape for a daemon that knows no token, and asks for none on the loopback.
const ANY_KEY: &str = "e2b_0000000000000000000000000000000000000000";
/// A name such as those of sandboxes' ports on the loopback.
const PORT_NAME: (&str, u16) = ("8000-i0.localhost", 80);

pub fn run(options: &E2bEnvOptions) -> Result<Exit, CliError> {
    let (client, ca) = asynchronously(async {
        let client = daemon::find(&options.daemon).await?;
        let ca = ca(&client).await?;
        Ok((client, ca))
    })?;
    let address = match client.address() {
        // It does not tell.
        Address::Unix(_) => format!("http://{USUAL_LISTEN}"),
        address => address.to_string(),
    };
    let key = client.token().map_or(ANY_KEY, |token| token.reveal());
    let mut variables =
        vec![("E2B_API_URL", address.clone()), ("E2B_SANDBOX_URL", address), ("E2B_API_KEY", key.to_owned())];
    if let Some(ca) = ca {
        let files = trust::files(&home::directory()?, &ca);
        variables
            .extend(files.map_err(|error| CliError::Io("write the certificate of the daemon's CA", error))?);
    }
    if options.output.json {
        print_json(&BTreeMap::from_iter(variables))?;
    } else {
        let lines = variables.iter().map(|(name, value)| {
            // A path may have a space. Addresses and keys need no quotes, and get none.
            let value = shlex::try_quote(value).map_or(value.into(), |quoted| quoted);
            format!("export {name}={value}\n")
        });
        print(&lines.collect::<String>())?;
    }
    if client.address().is_local() && PORT_NAME.to_socket_addrs().is_err() {
        say(
            "note: this host does not resolve *.localhost (libnss-myhostname does): get_host() works in curl and browsers only",
        );
    }
    Ok(Exit::Success)
}

/// The certificate of the daemon's own CA, if it has one.
async fn ca(client: &Client) -> Result<Option<String>, ClientError> {
    match client.ca().await {
        Ok(certificate) => Ok(Some(certificate)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
