//! `forkd e2b env`: what E2B's clients have to know of this daemon, as a shell takes it.

use std::collections::BTreeMap;

use forkd_client::Address;

use crate::arguments::{E2bEnvOptions, USUAL_LISTEN};
use crate::commands::{asynchronously, print, print_json};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;

/// The right shape for a daemon that knows no token, and asks for none on the loopback.
const ANY_KEY: &str = "e2b_0000000000000000000000000000000000000000";

pub fn run(options: &E2bEnvOptions) -> Result<Exit, CliError> {
    let client = asynchronously(async { daemon::find(&options.daemon).await })?;
    let address = match client.address() {
        // It does not tell.
        Address::Unix(_) => format!("http://{USUAL_LISTEN}"),
        address => address.to_string(),
    };
    let key = client.token().map_or(ANY_KEY, |token| token.reveal());
    let variables = [("E2B_API_URL", address.as_str()), ("E2B_SANDBOX_URL", &address), ("E2B_API_KEY", key)];
    if options.output.json {
        print_json(&BTreeMap::from(variables))?;
    } else {
        print(&variables.map(|(name, value)| format!("export {name}={value}\n")).concat())?;
    }
    Ok(Exit::Success)
}
