//! `forkd bandwidth`.

use super::{print, print_json, with_daemon};
use crate::arguments::{Bandwidth, BandwidthOptions};
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &BandwidthOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let sandbox = match options.size {
            Some(Bandwidth::Mib(mib)) => client.set_bandwidth(&options.sandbox, Some(mib)).await?,
            Some(Bandwidth::Default) => client.set_bandwidth(&options.sandbox, None).await?,
            None => client.sandbox(&options.sandbox).await?,
        };
        let mib = sandbox.limits.bandwidth_mib;
        match (options.output.json, mib) {
            (true, mib) => print_json(&mib)?,
            (false, Some(mib)) => print(&format!("{mib} MiB/s\n"))?,
            (false, None) if sandbox.egress.is_none() => print("no network\n")?,
            (false, None) => print("unlimited\n")?,
        }
        Ok(Exit::Success)
    })
}
