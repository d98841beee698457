//! One file a verb.

pub mod bandwidth;
pub mod bench;
pub mod branch;
pub mod build_guest;
pub mod cleanup;
pub mod completions;
pub mod context;
pub mod cp;
pub mod dev;
pub mod doctor;
pub mod e2b;
pub mod egress;
pub mod eval;
pub mod events;
pub mod exec;
pub mod fork;
pub mod hold;
pub mod image;
pub mod inspect;
pub mod kernel;
pub mod kill;
pub mod logs;
pub mod ls;
pub mod machine;
pub mod man;
pub mod mcp;
pub mod pause;
pub mod ping;
pub mod port_forward;
pub mod process;
pub mod project;
pub mod recipe;
pub mod resume;
pub mod rollback;
pub mod run;
pub mod serve;
pub mod shell;
pub mod snapshot;
pub mod stats;
pub mod token;
pub mod ttl;
pub mod wait;

use std::fmt::Display;
use std::io::{self, Write};

use forkd_api::sandbox::Sandbox;
use forkd_client::{Client, ClientError};
use serde::Serialize;

use crate::arguments::{DaemonOptions, Output, SandboxesOptions};
use crate::daemon;
use crate::error::{self, CliError};
use crate::exit::Exit;
use crate::table::{Side, Table, plain};

/// Writes data to stdout.
fn print(text: &str) -> Result<(), CliError> {
    match io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush()) {
        // `forkd … | head` has read what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| CliError::Io("write to stdout", error)),
    }
}

/// Writes data to stdout as JSON.
fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text =
        serde_json::to_string_pretty(value).map_err(|error| CliError::Io("write JSON", error.into()))?;
    print(&format!("{text}\n"))
}

/// Writes a value to stdout: as JSON if that is wanted, otherwise as text.
fn print_value(
    output: &Output,
    value: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), CliError> {
    if output.json { print_json(value) } else { print(&text()) }
}

/// Names, each on a line of its own.
fn lines(names: impl IntoIterator<Item = impl Display>) -> String {
    names.into_iter().map(|name| format!("{name}\n")).collect()
}

/// Tells the user something that is not data.
pub(crate) fn say(text: &str) {
    // An error of stderr itself cannot be reported.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Does something that waits for others.
pub(crate) fn asynchronously<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CliError::Io("start", error))?.block_on(work)
}

/// Does something with the daemon that is there.
fn with_daemon<T>(
    options: &DaemonOptions,
    work: impl AsyncFnOnce(Client) -> Result<T, CliError>,
) -> Result<T, CliError> {
    asynchronously(async { work(daemon::find(options).await?).await })
}

/// Does the same to each of some sandboxes, and shows what became of them. One that fails does not keep the others from it.
fn each(
    options: &SandboxesOptions,
    work: impl AsyncFn(&Client, &str) -> Result<Sandbox, ClientError>,
) -> Result<Exit, CliError> {
    with_daemon(&options.daemon, async |client| {
        let (mut changed, mut exit) = (Vec::new(), Exit::Success);
        for id in &options.sandboxes {
            match work(&client, id).await {
                Ok(sandbox) => changed.push(sandbox),
                Err(error) => {
                    error::print(&error.into());
                    exit = Exit::Failure;
                }
            }
        }
        if options.output.json {
            print_json(&changed)?;
        } else if !changed.is_empty() {
            let mut table = Table::new([("ID", Side::Left), ("STATE", Side::Left)]);
            for sandbox in &changed {
                table.row([sandbox.id.clone(), ls::state(sandbox.state).into()]);
            }
            print(&table.render())?;
        }
        Ok(exit)
    })
}

/// Facts, a line each, without those that there are not.
fn sheet(facts: &[(&str, Option<String>)]) -> String {
    let facts = facts.iter().filter_map(|(name, fact)| Some((name, fact.as_ref()?)));
    facts.map(|(name, fact)| format!("{name:<15} {}\n", plain(fact))).collect()
}
