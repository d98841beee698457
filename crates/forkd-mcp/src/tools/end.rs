//! `end`.

use forkd_api::snapshot::RemoveSnapshot;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::call::{Call, wrong};
use crate::failure::Failure;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct End {
    /// The ids of the sandboxes to end.
    #[serde(default)]
    sandboxes: Vec<String>,
    /// The names of branches to remove. Snapshots that are not branches of a sandbox are refused.
    #[serde(default)]
    branches: Vec<String>,
}

#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Ended {
    /// The sandboxes that have ended, and those that were not there.
    sandboxes: Vec<String>,
    /// The branches that were removed, and those that were not there.
    branches: Vec<String>,
    /// What could not be done, and why.
    failures: Vec<String>,
}

pub(super) async fn end(call: &Call<'_>, wanted: End) -> Result<Answer, Failure> {
    let End { sandboxes, branches } = wanted;
    if sandboxes.is_empty() && branches.is_empty() {
        return Err(wrong("end", "expected `sandboxes`, `branches` or both"));
    }
    let mut ended = Ended::default();
    for id in sandboxes {
        match call.client.remove_sandbox(&id).await {
            Ok(()) => ended.sandboxes.push(id),
            Err(error) if error.is_not_found() => ended.sandboxes.push(id),
            Err(error) => {
                ended.failures.push(call.failed(format!("Cannot end sandbox {id}"), &error).to_string());
            }
        }
    }
    for tag in branches {
        match remove_branch(call, &tag).await {
            Ok(()) => ended.branches.push(tag),
            Err(failure) => ended.failures.push(failure.to_string()),
        }
    }
    let mut text = String::new();
    for (what, names) in [("Ended", &ended.sandboxes), ("Removed", &ended.branches)] {
        if !names.is_empty() {
            text += &format!("{what}: {}\n", names.join(", "));
        }
    }
    text += &ended.failures.join("\n");
    if ended.sandboxes.is_empty() && ended.branches.is_empty() {
        return Err(Failure::new("Nothing was ended", ended.failures.join("; ")));
    }
    Ok(Answer::with_data(text.trim_end(), &ended))
}

async fn remove_branch(call: &Call<'_>, tag: &str) -> Result<(), Failure> {
    let what = format!("Cannot remove branch {tag}");
    let snapshot = match call.client.snapshot(tag).await {
        Err(error) if error.is_not_found() => return Ok(()),
        snapshot => snapshot.map_err(|error| call.failed(&what, &error))?,
    };
    if snapshot.branched_from.is_none() {
        return Err(Failure::new(&what, "it is not a branch of a sandbox, but a snapshot of its own")
            .next("leave it; the user removes it with: forkd snapshot rm"));
    }
    let removed = call.client.remove_snapshot(tag, RemoveSnapshot::default()).await;
    removed.map(drop).map_err(|error| call.failed(&what, &error))
}
