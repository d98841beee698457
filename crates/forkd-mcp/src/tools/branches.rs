//! `branch` and `rollback`.

use forkd_api::sandbox::BranchSandbox;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::answer::Answer;
use crate::call::Call;
use crate::failure::Failure;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Branch {
    /// The sandbox's id.
    sandbox: String,
    /// A name for the snapshot: 1 to 64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or a digit. Without it, it gets one.
    name: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Branched {
    /// The snapshot's name, for `fork` and `rollback`.
    snapshot: String,
    /// How long the sandbox was paused for it, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    paused_ms: Option<f64>,
}

pub(super) async fn branch(call: &Call<'_>, wanted: Branch) -> Result<Answer, Failure> {
    let Branch { sandbox, name } = wanted;
    let what = format!("Cannot branch sandbox {sandbox}");
    call.open(&what, &sandbox).await?;
    let made = call.client.branch(&sandbox, &BranchSandbox { tag: name, wait: false }).await;
    let made = made.map_err(|error| call.failed(&what, &error))?;
    // Microseconds of a pause are far fewer than a float holds exactly.
    let paused_ms = made.pause_us.and_then(|us| u32::try_from(us).ok()).map(|us| f64::from(us) / 1000.0);
    let text = format!(
        "Snapshot {tag} has the state of sandbox {sandbox}. `rollback` with branch {tag} goes back to it; `fork` with source {tag} \
         makes copies.",
        tag = made.tag
    );
    Ok(Answer::with_data(text, &Branched { snapshot: made.tag, paused_ms }))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rollback {
    /// The sandbox's id.
    sandbox: String,
    /// The branch to go back to: one of the sandbox's own.
    branch: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RolledBack {
    sandbox: String,
    /// The branch whose state it has.
    branch: String,
}

pub(super) async fn rollback(call: &Call<'_>, wanted: Rollback) -> Result<Answer, Failure> {
    let Rollback { sandbox, branch } = wanted;
    let what = format!("Cannot take sandbox {sandbox} back to {branch}");
    call.open(&what, &sandbox).await?;
    call.client.rollback(&sandbox, &branch).await.map_err(|error| call.failed(&what, &error))?;
    let text = format!("Sandbox {sandbox} has the state of branch {branch} again.");
    Ok(Answer::with_data(text, &RolledBack { sandbox, branch }))
}
