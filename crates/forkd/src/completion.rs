//! Completion of sandbox ids, snapshot tags and image names: the daemon is asked, within a second.
//!
//! The daemon is the one that FORKD_ADDRESS names, else this host's, else the machine's. `--address` on the line is ignored.

use std::ffi::OsStr;
use std::time::Duration;

use clap::Parser;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter};
use forkd_api::sandbox::ListSandboxes;
use forkd_client::Client;

use crate::arguments::DaemonOptions;
use crate::commands::asynchronously;
use crate::daemon;

/// Longer than a local daemon needs, and short enough for a user at a prompt.
const PATIENCE: Duration = Duration::from_secs(1);

/// Kinds of names that the daemon knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sandbox,
    Snapshot,
    Image,
}

/// What a value of the grammar names; `existing` unless TAG is a new name.
pub fn kind(value_name: &str, existing: bool) -> Option<Kind> {
    match value_name {
        "SANDBOX" | "SANDBOXES" => Some(Kind::Sandbox),
        "SNAPSHOT" => Some(Kind::Snapshot),
        "TAG" if existing => Some(Kind::Snapshot),
        "IMAGE" => Some(Kind::Image),
        _ => None,
    }
}

/// The daemon options without arguments: from the environment.
#[derive(Debug, Parser)]
struct Environment {
    #[command(flatten)]
    daemon: DaemonOptions,
}

/// All names of these kinds. Errors yield no candidates: a completion must not print to the prompt.
pub fn candidates(kinds: &[Kind]) -> Vec<CompletionCandidate> {
    let Ok(options) = Environment::try_parse_from(["forkd"]) else { return Vec::new() };
    let asked = asynchronously(async {
        let found = tokio::time::timeout(PATIENCE, async {
            let Ok(Some(client)) = daemon::look(&options.daemon).await else { return Vec::new() };
            let mut names = Vec::new();
            for kind in kinds {
                names.extend(named(&client, *kind).await);
            }
            names
        });
        Ok(found.await.unwrap_or_default())
    });
    asked.unwrap_or_default()
}

/// Candidates for an argument of `forkd cp`: files, and `SANDBOX:`.
pub fn copied(current: &OsStr) -> Vec<CompletionCandidate> {
    let sandboxes = candidates(&[Kind::Sandbox]).into_iter().filter_map(|candidate| {
        let name = format!("{}:", candidate.get_value().to_str()?);
        let begun = name.starts_with(current.to_str()?);
        begun.then(|| CompletionCandidate::new(name).help(candidate.get_help().cloned()))
    });
    sandboxes.chain(PathCompleter::any().complete(current)).collect()
}

async fn named(client: &Client, kind: Kind) -> Vec<CompletionCandidate> {
    let with_help = |name: String, help: String| CompletionCandidate::new(name).help(Some(help.into()));
    match kind {
        Kind::Sandbox => {
            let sandboxes = client.sandboxes(&ListSandboxes::default()).await.unwrap_or_default();
            sandboxes.into_iter().map(|sandbox| with_help(sandbox.id, "sandbox".into())).collect()
        }
        Kind::Snapshot => {
            let snapshots = client.snapshots().await.unwrap_or_default();
            snapshots.into_iter().map(|snapshot| with_help(snapshot.tag, "snapshot".into())).collect()
        }
        Kind::Image => {
            let images = client.images().await.unwrap_or_default();
            let names = images.into_iter().flat_map(|image| image.names);
            names.map(|name| with_help(name.to_string(), "image".into())).collect()
        }
    }
}
