//! A round: children of one request, each of which evaluates, until they are removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forkd_api::sandbox::{CreateSandboxes, CreatedSandboxes, SandboxStats};
use forkd_client::Client;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::api::{Plan, eval_of, evaluate};
use crate::commands::fork;
use crate::error::CliError;
use crate::signals::Signals;

/// Requests that are made at once: more would only wait for each other.
const AT_ONCE: usize = 32;

pub struct Round {
    pub created: CreatedSandboxes,
    /// From the request until its answer was here, and until the last result was.
    pub ready_here: Duration,
    pub output: Duration,
    /// How long each result took.
    pub evals: Vec<Duration>,
    /// What they were, each once.
    pub results: BTreeSet<String>,
    /// What each child used then.
    pub stats: Vec<SandboxStats>,
    pub removed: Duration,
}

/// Makes `n` children, has each evaluate, and removes them, also when something failed.
pub async fn round(
    client: &Client,
    plan: Plan<'_>,
    n: u32,
    counted: bool,
    signals: &mut Signals,
) -> Result<Round, CliError> {
    let wanted =
        CreateSandboxes { snapshot_tag: Some(plan.snapshot.to_owned()), n, counted, ..Default::default() };
    // The connection is there before the clock runs.
    client.health().await?;
    let begun = Instant::now();
    let created = fork::create(client, &wanted, signals).await?;
    let ready_here = begun.elapsed();
    let eval = eval_of(plan.code);
    let measured = async {
        let evals = of_each(client, &created, |client, id| {
            let eval = eval.clone();
            async move {
                let begun = Instant::now();
                let result = evaluate(&client, &id, &eval).await?;
                Ok((begun.elapsed(), result))
            }
        });
        let (evals, results): (Vec<_>, Vec<_>) = evals.await?.into_iter().unzip();
        let output = begun.elapsed();
        let stats = of_each(client, &created, |client, id| async move { Ok(client.stats(&id).await?) });
        Ok((evals, results, output, stats.await?))
    };
    let measured = tokio::select! {
        measured = measured => measured,
        asked = signals.end() => Err(CliError::Interrupted(asked.status())),
    };
    let removing = Instant::now();
    of_each(client, &created, |client, id| async move {
        fork::remove(&client, &id).await;
        Ok(())
    })
    .await?;
    let removed = removing.elapsed();
    let (evals, results, output, stats) = measured?;
    let results = results.into_iter().flatten().collect();
    Ok(Round { created, ready_here, output, evals, results, stats, removed })
}

/// Makes a request about each child, many at once.
async fn of_each<T: Send + 'static, F: Future<Output = Result<T, CliError>> + Send + 'static>(
    client: &Client,
    created: &CreatedSandboxes,
    request: impl Fn(Client, String) -> F,
) -> Result<Vec<T>, CliError> {
    let mut requests = JoinSet::new();
    let turns = Arc::new(Semaphore::new(AT_ONCE));
    for sandbox in &created.sandboxes {
        let (turns, request) = (Arc::clone(&turns), request(client.clone(), sandbox.id.clone()));
        requests.spawn(async move {
            let _turn = turns.acquire().await;
            request.await
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = requests.join_next().await {
        answers.push(answer.map_err(|error| CliError::Io("wait for an answer", error.into()))??);
    }
    Ok(answers)
}
