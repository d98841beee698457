//! `run`.

use std::collections::BTreeMap;

use forkd_api::code::Language;
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::answer::Answer;
use crate::call::{Call, Room, wrong};
use crate::command::{self, Job, Program};
use crate::failure::Failure;
use crate::sandboxes::New;

/// The longest time of a command, as the daemon has it.
pub(super) const MAX_SECS: u64 = 24 * 3600;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// Code to run in the interpreter of `language`. Either this or `command`.
    code: Option<String>,
    /// The language of `code`.
    #[serde(default)]
    language: CodeLanguage,
    /// A command line for `sh -c`. Either this or `code`.
    command: Option<String>,
    /// The id of the sandbox to use. Without it, a new one is made.
    sandbox: Option<String>,
    /// The snapshot that a new sandbox is made of. Without it, the default one.
    snapshot: Option<String>,
    /// Seconds until it is stopped.
    #[serde(default = "minute")]
    #[schemars(range(min = 1, max = 86400))]
    timeout_secs: u64,
    /// The directory of a `command`, as an absolute path. Without it, the image's.
    cwd: Option<String>,
    /// Variables of its environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CodeLanguage {
    #[default]
    Python,
    Javascript,
    Typescript,
    Bash,
    R,
    Java,
}

impl From<CodeLanguage> for Language {
    fn from(language: CodeLanguage) -> Language {
        match language {
            CodeLanguage::Python => Language::Python,
            CodeLanguage::Javascript => Language::Javascript,
            CodeLanguage::Typescript => Language::Typescript,
            CodeLanguage::Bash => Language::Bash,
            CodeLanguage::R => Language::R,
            CodeLanguage::Java => Language::Java,
        }
    }
}

pub(super) fn minute() -> u64 {
    60
}

/// Checks a time limit of a tool's.
pub(super) fn seconds(tool: &str, seconds: u64) -> Result<u64, Failure> {
    match seconds {
        1..=MAX_SECS => Ok(seconds),
        _ => Err(wrong(tool, format!("timeout_secs is {seconds}, expected 1 to {MAX_SECS}"))),
    }
}

pub(super) async fn run(call: &Call<'_>, wanted: Run) -> Result<Answer, Failure> {
    let Run { code, language, command, sandbox, snapshot, timeout_secs, cwd, env } = wanted;
    let program = match (code, command) {
        (Some(code), None) if cwd.is_none() => Program::Code { code, language: language.into() },
        (Some(_), None) => {
            return Err(wrong("run", "`cwd` is for `command`: code changes its directory itself"));
        }
        (None, Some(command)) => Program::Shell { command, cwd },
        _ => return Err(wrong("run", "expected exactly one of `code` and `command`")),
    };
    let job = Job { program, env, timeout_secs: seconds("run", timeout_secs)? };
    let (id, made) = sandbox_for(call, "run", sandbox, snapshot).await?;
    let what = format!("Cannot run this in sandbox {id}");
    let outcome = async {
        let running = command::run(&call.client, &id, &job, &call.progress);
        call.using(&what, &id, running).await?.map_err(|stopped| call.stopped(&what, stopped))
    };
    let mut outcome = outcome.await.map_err(|failure| match made {
        Some(_) => failure.after(&format!("Sandbox {id} was made for this call and can be used")),
        None => failure,
    })?;
    let mut status = format!("sandbox: {id}{}\nstatus: {}", made.unwrap_or_default(), outcome.status());
    if outcome.timed_out {
        status += &format!(
            " after {timeout_secs} s; give it more time with `timeout_secs`, or start it in the background \
             (nohup ... >/tmp/log 2>&1 &)"
        );
    }
    let mut content = vec![ContentBlock::text(status)];
    content.extend(call.output("output", &outcome.take_text(), outcome.left_out(), Room::ALL));
    content.extend(call.pictures(outcome.pictures));
    Ok(Answer { content, structured: None })
}

/// The sandbox that is named, or a new one, and then how it came to be.
pub(super) async fn sandbox_for(
    call: &Call<'_>,
    tool: &str,
    sandbox: Option<String>,
    snapshot: Option<String>,
) -> Result<(String, Option<String>), Failure> {
    match (sandbox, snapshot) {
        (Some(_), Some(_)) => {
            Err(wrong(tool, "`snapshot` is for a new sandbox, and `sandbox` names one that is there"))
        }
        (Some(id), None) => Ok((id, None)),
        (None, snapshot) => {
            let source = match snapshot {
                Some(snapshot) => snapshot,
                None => call.default_snapshot().await?,
            };
            let note = format!(
                " (new, of snapshot {source}; ends {} s after its last use)",
                call.common.settings.ttl_secs
            );
            let made = call.create(New { source, n: 1, ..New::default() }).await?;
            let sandbox = made.into_iter().next();
            let sandbox =
                sandbox.ok_or_else(|| Failure::new("Cannot make a sandbox", "the daemon made none"))?;
            call.progress.say(&format!("sandbox {} is ready", sandbox.id)).await;
            Ok((sandbox.id, Some(note)))
        }
    }
}
