//! `fork`.

use std::collections::BTreeMap;
use std::time::Instant;

use forkd_api::sandbox::Sandbox;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::run::{CodeLanguage, minute, seconds};
use crate::answer::{Answer, shortened, table};
use crate::call::{Call, Room, wrong};
use crate::command::{self, Job, Outcome, Program, Stopped};
use crate::failure::Failure;
use crate::sandboxes::New;

/// The variable with a copy's number.
const INDEX: &str = "FORK_INDEX";

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {
    /// What to copy: a snapshot's name, or a sandbox's id.
    source: String,
    /// How many copies. Without it, as many as there are `commands`, else 2.
    #[schemars(range(min = 1, max = 1000))]
    n: Option<u32>,
    /// A command line for `sh -c`, run in each copy. At most one of this, `code` and `commands`.
    command: Option<String>,
    /// Code, run in each copy.
    code: Option<String>,
    /// The language of `code`.
    #[serde(default)]
    language: CodeLanguage,
    /// A command line for each copy, one after another.
    commands: Option<Vec<String>>,
    /// Seconds until what runs is stopped.
    #[serde(default = "minute")]
    #[schemars(range(min = 1, max = 86400))]
    timeout_secs: u64,
    /// Variables of the environment of what runs.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// What became of all of them.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Forked {
    /// One for each copy, in the order of FORK_INDEX.
    children: Vec<Child>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct Child {
    /// The copy's id.
    sandbox: String,
    /// How it went: `exit code 0`, `raised ValueError`, `timed out`, `forked` if nothing was to run, `failed` if it could not be run.
    status: String,
    succeeded: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    seconds: f64,
    /// What it printed, cut in the middle if it is long.
    output: String,
}

pub(super) async fn fork(call: &Call<'_>, wanted: Fork) -> Result<Answer, Failure> {
    let jobs = jobs(&wanted)?;
    let n = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let created = call.create(New { source: wanted.source.clone(), n, ..New::default() }).await?;
    call.progress.say(&format!("{n} sandboxes are ready")).await;
    let total = created.len();
    let running = async {
        let mut running: FuturesUnordered<_> = created
            .iter()
            .zip(jobs)
            .enumerate()
            .map(|(index, (sandbox, job))| async move { (index, one(call, sandbox, job).await) })
            .collect();
        let mut results = BTreeMap::new();
        while let Some((index, result)) = running.next().await {
            results.insert(index, result);
            call.progress.say(&format!("{} of {total} are done", results.len())).await;
        }
        results
    };
    // Those that are done wait for the slowest: nobody knows their ids before.
    let ids: Vec<&str> = created.iter().map(|sandbox| sandbox.id.as_str()).collect();
    let results = call.renewing(&ids, running).await;
    Ok(answer(call, created, results.into_values().collect()))
}

/// What each copy is to run.
fn jobs(wanted: &Fork) -> Result<Vec<Option<Job>>, Failure> {
    let Fork { n, command, code, language, commands, timeout_secs, env, .. } = wanted;
    let timeout_secs = seconds("fork", *timeout_secs)?;
    let shell = |command: &String| Program::Shell { command: command.clone(), cwd: None };
    let programs: Vec<Option<Program>> = match (command, code, commands) {
        (None, None, Some(commands)) => {
            let count = u32::try_from(commands.len()).unwrap_or(u32::MAX);
            if count == 0 || n.is_some_and(|n| n != count) {
                return Err(wrong("fork", format!("`commands` has {count}, expected one for each copy")));
            }
            commands.iter().map(|command| Some(shell(command))).collect()
        }
        (command, code, None) if command.is_none() || code.is_none() => {
            let program = match (command, code) {
                (Some(command), _) => Some(shell(command)),
                (_, Some(code)) => Some(Program::Code { code: code.clone(), language: (*language).into() }),
                _ => None,
            };
            match n.unwrap_or(2) {
                n @ 1..=1000 => (0..n).map(|_| program.clone()).collect(),
                n => return Err(wrong("fork", format!("n is {n}, expected 1 to 1000"))),
            }
        }
        _ => return Err(wrong("fork", "expected at most one of `command`, `code` and `commands`")),
    };
    let job = |(index, program): (usize, Option<Program>)| {
        let mut env = env.clone();
        env.entry(INDEX.into()).or_insert_with(|| index.to_string());
        Some(Job { program: program?, env, timeout_secs })
    };
    Ok(programs.into_iter().enumerate().map(job).collect())
}

/// What one copy came to, and how long it took. A failure is told with its output, and with how many bytes of that are missing.
type Ran = (Option<Result<Outcome, (Failure, usize)>>, f64);

async fn one(call: &Call<'_>, sandbox: &Sandbox, job: Option<Job>) -> Ran {
    let begun = Instant::now();
    let Some(job) = job else { return (None, 0.0) };
    let what = format!("Cannot run this in sandbox {}", sandbox.id);
    let outcome = async {
        call.open(&what, &sandbox.id).await.map_err(|failure| (failure, 0))?;
        let ran = command::run(&call.client, &sandbox.id, &job, &call.progress).await;
        ran.map_err(|Stopped { error, mut until_then }| {
            let failure = call.failed(&what, &error).with_output(until_then.take_text());
            (failure, until_then.left_out())
        })
    };
    (Some(outcome.await), begun.elapsed().as_secs_f64())
}

fn answer(call: &Call<'_>, created: Vec<Sandbox>, results: Vec<Ran>) -> Answer {
    let room = Room::of_each(created.len());
    let (mut children, mut outputs, mut pictures) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (sandbox, (result, seconds))) in created.into_iter().zip(results).enumerate() {
        let (status, succeeded, exit_code, text, lost) = match result {
            None => ("forked".to_owned(), true, None, String::new(), 0),
            Some(Err((failure, lost))) => ("failed".to_owned(), false, None, failure.to_string(), lost),
            Some(Ok(mut outcome)) => {
                let (text, lost) = (outcome.take_text(), outcome.left_out());
                let told = (outcome.status(), outcome.succeeded(), outcome.exit_code, text, lost);
                pictures.extend(outcome.pictures);
                told
            }
        };
        if !text.is_empty() {
            outputs.push(ContentBlock::text(format!("## {index}: {}", sandbox.id)));
            outputs.extend(call.output(&format!("output-{index}"), &text, lost, room));
        }
        let output = shortened(&text, room.shown, lost);
        children.push(Child { sandbox: sandbox.id, status, succeeded, exit_code, seconds, output });
    }
    let rows = children.iter().enumerate().map(|(index, child)| {
        let last = child.output.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        let last: String = last.chars().take(80).collect();
        [
            index.to_string(),
            child.sandbox.clone(),
            child.status.clone(),
            format!("{:.2}", child.seconds),
            last,
        ]
    });
    let text = table(["#", "sandbox", "status", "seconds", "last line"], rows);
    let mut answer = Answer::with_data(text, &Forked { children });
    answer.content.extend(outputs);
    answer.content.extend(call.pictures(pictures));
    answer
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn jobs_of(wanted: serde_json::Value) -> Result<Vec<Option<Job>>, String> {
        let wanted: Fork = serde_json::from_value(wanted).map_err(|error| error.to_string())?;
        jobs(&wanted).map_err(|failure| failure.to_string())
    }

    #[test]
    fn each_copy_has_its_job_and_its_number() {
        let made =
            jobs_of(json!({ "source": "base", "n": 3, "command": "true", "env": { "A": "1" } })).unwrap();
        let indices: Vec<_> = made.iter().map(|job| job.as_ref().unwrap().env[INDEX].clone()).collect();
        assert_eq!(indices, ["0", "1", "2"]);
        let made = jobs_of(json!({ "source": "base", "commands": ["a", "b"] })).unwrap();
        let Some(Job { program: Program::Shell { command, .. }, .. }) = &made[1] else { panic!("{made:?}") };
        assert_eq!((made.len(), command.as_str()), (2, "b"));
        assert!(jobs_of(json!({ "source": "base" })).unwrap().iter().all(Option::is_none));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (wanted, why) in [
            (json!({ "source": "x", "command": "a", "code": "b" }), "at most one"),
            (json!({ "source": "x", "commands": ["a"], "code": "b" }), "at most one"),
            (json!({ "source": "x", "commands": ["a"], "n": 2 }), "one for each copy"),
            (json!({ "source": "x", "commands": [] }), "one for each copy"),
            (json!({ "source": "x", "n": 0 }), "expected 1 to 1000"),
            (json!({ "source": "x", "timeout_secs": 0 }), "expected 1 to 86400"),
            (json!({ "n": 1 }), "missing field `source`"),
            (json!({ "source": "x", "m": 1 }), "unknown field `m`"),
        ] {
            let refused = jobs_of(wanted.clone()).unwrap_err();
            assert!(refused.contains(why), "{wanted}: {refused}");
        }
    }
}
