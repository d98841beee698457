//! `forkd ttl`.

use super::{print, print_json, with_daemon};
use crate::arguments::{Ttl, TtlOptions};
use crate::error::CliError;
use crate::exit::Exit;
use crate::moment::until;

pub fn run(options: &TtlOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let sandbox = match options.ttl {
            Some(Ttl::Seconds(seconds)) => client.set_ttl(&options.sandbox, Some(seconds)).await?,
            Some(Ttl::Never) => client.set_ttl(&options.sandbox, None).await?,
            None => client.sandbox(&options.sandbox).await?,
        };
        match (options.output.json, sandbox.expires_at_unix) {
            (true, at) => print_json(&at)?,
            (false, Some(at)) => print(&format!("{}\n", until(at)))?,
            (false, None) => print("never\n")?,
        }
        Ok(Exit::Success)
    })
}
