//! `forkd e2b env`: what E2B's clients have to know of this daemon, as a shell takes it.

use std::collections::BTreeMap;
use std::net::ToSocketAddrs;

use forkd_api::system::TcpPort;
use forkd_client::{Address, Client, ClientError};
use forkd_host::home;

use super::trust;
use crate::arguments::E2bEnvOptions;
use crate::commands::{asynchronously, print, print_json, say};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;

/// The right shape for a daemon that knows no token, and asks for none on the loopback.
const ANY_KEY: &str = "e2b_0000000000000000000000000000000000000000";
/// A name such as those of sandboxes' ports on the loopback.
const PORT_NAME: (&str, u16) = ("8000-i0.localhost", 80);

pub fn run(options: &E2bEnvOptions) -> Result<Exit, CliError> {
    let (client, port, ca) = asynchronously(async {
        let client = daemon::find(&options.daemon).await?;
        let port = tcp_port(&client).await?;
        let ca = ca(&client).await?;
        Ok((client, port, ca))
    })?;
    let TcpPort { url, needs_token } = port;
    let key = match client.token() {
        Some(token) => Some(token.reveal()),
        None => (!needs_token).then_some(ANY_KEY),
    };
    let mut variables = vec![("E2B_API_URL", url.clone()), ("E2B_SANDBOX_URL", url)];
    variables.extend(key.map(|key| ("E2B_API_KEY", key.to_owned())));
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
    if key.is_none() {
        say("note: the daemon's TCP port needs a token: export E2B_API_KEY=\"$(forkd token create NAME)\"");
    }
    if client.address().is_local() && PORT_NAME.to_socket_addrs().is_err() {
        say(
            "note: this host does not resolve *.localhost (libnss-myhostname does): get_host() works in curl and browsers only",
        );
    }
    Ok(Exit::Success)
}

/// Where E2B's clients reach the daemon, which speak TCP only.
async fn tcp_port(client: &Client) -> Result<TcpPort, CliError> {
    match client.address() {
        Address::Unix(_) => client.version().await?.tcp.ok_or(CliError::NoTcpPort),
        // Whoever was answered here needs no other token than the one it has.
        address => Ok(TcpPort { url: address.to_string(), needs_token: false }),
    }
}

/// The certificate of the daemon's own CA, if it has one.
async fn ca(client: &Client) -> Result<Option<String>, ClientError> {
    match client.ca().await {
        Ok(certificate) => Ok(Some(certificate)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
