//! `forkd egress`.

use forkd_api::sandbox::{Egress, EgressMode};

use super::{print, print_json, with_daemon};
use crate::arguments::EgressOptions;
use crate::error::CliError;
use crate::exit::Exit;

pub fn run(options: &EgressOptions) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let sandbox = match options.egress.wanted() {
            Some(egress) => client.set_egress(&options.sandbox, &egress).await?,
            None => client.sandbox(&options.sandbox).await?,
        };
        match (options.output.json, &sandbox.egress) {
            (true, egress) => print_json(egress)?,
            (false, Some(egress)) => print(&format!("{}\n", line(egress)))?,
            (false, None) => print("no network\n")?,
        }
        Ok(Exit::Success)
    })
}

/// In one line.
pub(super) fn line(egress: &Egress) -> String {
    match egress.mode {
        EgressMode::Allow => "allow".into(),
        EgressMode::Deny => "deny".into(),
        EgressMode::List => format!("only {}", egress.allow.join(", ")),
    }
}
