//! The eleven tools of deeplethe/forkd's MCP server, by its names and arguments, for clients that are used to them.
//!
//! Answers are what this daemon's API says of the same thing. Arguments that have no meaning here are taken and change nothing:
//! every sandbox has a network of its own, is forked from memory and is ready when it is there.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use forkd_api::code::Language;
use forkd_api::hint::HintCode;
use forkd_api::sandbox::{BranchSandbox, Limits, ListSandboxes};
use forkd_api::snapshot::CreateSnapshot;
use forkd_client::ClientError;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::answer::{Answer, MAX_SHOWN, shortened};
use crate::call::{Call, Room, arguments, wrong};
use crate::command::{self, Job, Outcome, Program};
use crate::failure::Failure;
use crate::sandboxes::New;
use crate::tools::{Definition, Effect};

/// The time of code, which has no argument for it.
const CODE_SECS: u64 = 30;
/// How long a ping may take.
const PING_SECS: u64 = 10;
/// The longest wait, as the daemon has it for commands.
const MAX_SECS: u64 = 24 * 3600;
/// What is looked at of a file, from its end, and shown of it.
const MAX_TAIL: usize = 64 << 10;
const EXCERPT: usize = 256;
/// How much of a file is read to get to its end.
const MAX_FILE: usize = 64 << 20;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct OneSandbox {
    /// The sandbox's id.
    sandbox_id: String,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Spawn {
    /// The snapshot to fork.
    snapshot_tag: String,
    /// How many.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 1000))]
    n: u32,
    /// Has no effect: every sandbox has a network of its own.
    #[serde(default, rename = "per_child_netns")]
    _per_child_netns: bool,
    /// The most host memory of each, in MiB. Without it, what its guest has.
    memory_limit_mib: Option<u64>,
    /// Has no effect: pages that children use are known to the daemon.
    #[serde(default, rename = "prewarm")]
    _prewarm: bool,
    /// Has no effect: sandboxes are always forked from memory.
    #[serde(default, rename = "live_fork")]
    _live_fork: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Branch {
    /// The sandbox's id.
    sandbox_id: String,
    /// The name of the new snapshot. Without it, it gets one.
    tag: Option<String>,
    /// Has no effect: only what differs is ever written.
    #[serde(default, rename = "diff")]
    _diff: bool,
    /// Has no effect.
    #[serde(default, rename = "measure_diff")]
    _measure_diff: bool,
    /// full, diff or live. Has no effect: every branch is live.
    #[serde(default, rename = "mode")]
    _mode: Option<BranchMode>,
    /// Whether the answer comes when the snapshot is on disk, or as soon as it can be forked from.
    #[serde(default = "yes")]
    wait: bool,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum BranchMode {
    Full,
    Diff,
    Live,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Create {
    /// The name of the new snapshot.
    tag: String,
    /// The name of a kernel of the daemon's library, or `default`. Not a path.
    kernel: String,
    /// The name or id of an image of the daemon's library. Not a path.
    rootfs: String,
    /// Has no effect: disks can be written.
    #[serde(default, rename = "rw")]
    _rw: bool,
    /// Has no effect: sandboxes have a network if the daemon has any.
    #[serde(default, rename = "tap")]
    _tap: Option<String>,
    /// Has no effect: the guest says when it is ready.
    #[serde(default, rename = "boot_wait_secs")]
    _boot_wait_secs: Option<u64>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct WaitForText {
    /// The sandbox's id.
    sandbox_id: String,
    /// The file that is looked at.
    path: String,
    /// The text that is waited for, in the last 64 KiB of the file.
    marker: String,
    /// Seconds until it is given up.
    #[serde(default = "sixty")]
    #[schemars(range(min = 1, max = 86400))]
    timeout_secs: u64,
    /// Milliseconds between two looks.
    #[serde(default = "two_hundred")]
    #[schemars(range(min = 50, max = 60000))]
    poll_interval_ms: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Exec {
    /// The sandbox's id.
    sandbox_id: String,
    /// The program and its arguments.
    args: Vec<String>,
    /// Seconds until it is stopped.
    #[serde(default = "thirty")]
    #[schemars(range(min = 1, max = 86400))]
    timeout_secs: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct EvalCode {
    /// The sandbox's id.
    sandbox_id: String,
    /// Python code. Variables stay from call to call.
    code: String,
}

fn one() -> u32 {
    1
}

fn yes() -> bool {
    true
}

fn thirty() -> u64 {
    30
}

fn sixty() -> u64 {
    60
}

fn two_hundred() -> u64 {
    200
}

/// All of them.
pub(crate) fn definitions() -> &'static [Definition] {
    static ALL: LazyLock<Vec<Definition>> = LazyLock::new(|| {
        let making = Effect::default();
        let code = Effect { destructive: true, open_world: true, ..Effect::default() };
        let ending = Effect { destructive: true, idempotent: true, ..Effect::default() };
        vec![
            Definition::reading::<Nothing>(
                "list_snapshots",
                "List snapshots",
                "List the snapshots that sandboxes are forked from.",
            ),
            Definition::changing::<Spawn>(
                "spawn_sandboxes",
                "Make sandboxes",
                "Fork sandboxes from a snapshot.",
                making,
            ),
            Definition::changing::<Branch>(
                "branch_sandbox",
                "Branch a sandbox",
                "Make a snapshot of a sandbox that runs.",
                making,
            ),
            Definition::changing::<Create>(
                "create_snapshot",
                "Make a snapshot",
                "Boot an image and make a snapshot of it.",
                making,
            ),
            Definition::reading::<WaitForText>(
                "wait_for_text",
                "Wait for text in a file",
                "Wait until a text appears in a file of a sandbox.",
            ),
            Definition::reading::<Nothing>("list_sandboxes", "List sandboxes", "List the sandboxes."),
            Definition::reading::<OneSandbox>(
                "get_sandbox",
                "Look at a sandbox",
                "Show one sandbox: its state, branches and expiry.",
            ),
            Definition::changing::<OneSandbox>(
                "kill_sandbox",
                "End a sandbox",
                "End a sandbox. Its memory and files are lost.",
                ending,
            ),
            Definition::changing::<Exec>(
                "exec_command",
                "Run a command",
                "Run a program in a sandbox, and wait for its end.",
                code,
            ),
            Definition::changing::<EvalCode>(
                "eval_code",
                "Run Python code",
                "Run Python code in a sandbox's interpreter.",
                code,
            ),
            Definition::changing::<OneSandbox>(
                "ping_sandbox",
                "Ping a sandbox",
                "Check that a sandbox answers.",
                making,
            ),
        ]
    });
    &ALL
}

/// Does what a tool does.
pub(crate) async fn call(call: &Call<'_>, name: &str, given: Option<JsonObject>) -> Result<Answer, Failure> {
    match name {
        "list_snapshots" => {
            let Nothing {} = arguments(name, given)?;
            let list = call
                .client
                .snapshots()
                .await
                .map_err(|error| call.failed("Cannot list snapshots", &error))?;
            Ok(list_of(call, name, &list))
        }
        "list_sandboxes" => {
            let Nothing {} = arguments(name, given)?;
            let list = call.client.sandboxes(&ListSandboxes::default()).await;
            Ok(list_of(call, name, &list.map_err(|error| call.failed("Cannot list sandboxes", &error))?))
        }
        "spawn_sandboxes" => spawn(call, arguments(name, given)?).await,
        "branch_sandbox" => branch(call, arguments(name, given)?).await,
        "create_snapshot" => create(call, arguments(name, given)?).await,
        "wait_for_text" => wait_for_text(call, arguments(name, given)?).await,
        "get_sandbox" => {
            let OneSandbox { sandbox_id } = arguments(name, given)?;
            let sandbox = call.client.sandbox(&sandbox_id).await;
            let what = format!("Cannot look at sandbox {sandbox_id}");
            Ok(Answer::data(&sandbox.map_err(|error| call.failed(what, &error))?))
        }
        "kill_sandbox" => {
            let OneSandbox { sandbox_id } = arguments(name, given)?;
            let removed = call.client.remove_sandbox(&sandbox_id).await;
            removed.map_err(|error| call.failed(format!("Cannot end sandbox {sandbox_id}"), &error))?;
            Ok(Answer::data(&json!({ "id": sandbox_id, "killed": true })))
        }
        "exec_command" => exec(call, arguments(name, given)?).await,
        "eval_code" => eval(call, arguments(name, given)?).await,
        "ping_sandbox" => ping(call, arguments(name, given)?).await,
        _ => Err(Failure::new(format!("Cannot call `{name}`"), "there is no such tool")),
    }
}

/// A list as data, which must be an object, and as text, as far as it fits.
fn list_of(call: &Call<'_>, name: &str, list: &[impl serde::Serialize]) -> Answer {
    let mut shown: Vec<_> = list.iter().map(|item| json!(item)).collect();
    let text = serde_json::to_string(&shown).unwrap_or_default();
    if text.len() <= MAX_SHOWN {
        return Answer { structured: Some(json!({ "result": shown })), ..Answer::text(text) };
    }
    // The newest are the last of those that a list has.
    let mut size = 0;
    let newest = shown.iter().rev().take_while(|item| {
        size += item.to_string().len() + 1;
        size < MAX_SHOWN
    });
    let left_out = shown.len() - newest.count();
    shown.drain(..left_out);
    let structured = json!({ "result": shown, "truncated": true, "left_out": left_out });
    Answer { content: call.output(name, &text, 0, Room::ALL), structured: Some(structured) }
}

async fn spawn(call: &Call<'_>, wanted: Spawn) -> Result<Answer, Failure> {
    let Spawn { snapshot_tag, n, memory_limit_mib, .. } = wanted;
    if !(1..=1000).contains(&n) {
        return Err(wrong("spawn_sandboxes", format!("n is {n}, expected 1 to 1000")));
    }
    let limits = Limits { memory_mib: memory_limit_mib, ..Limits::default() };
    let made = call.create(New { source: snapshot_tag, n, limits }).await?;
    Ok(list_of(call, "spawn_sandboxes", &made))
}

async fn branch(call: &Call<'_>, wanted: Branch) -> Result<Answer, Failure> {
    let Branch { sandbox_id, tag, wait, .. } = wanted;
    let what = format!("Cannot branch sandbox {sandbox_id}");
    call.open(&what, &sandbox_id).await?;
    let wanted = BranchSandbox { tag, wait };
    let branching = call.client.branch(&sandbox_id, &wanted);
    let made = call.progress.during("writing the snapshot", branching).await;
    Ok(Answer::data(&made.map_err(|error| call.failed(what, &error))?))
}

async fn create(call: &Call<'_>, wanted: Create) -> Result<Answer, Failure> {
    let Create { tag, kernel, rootfs, .. } = wanted;
    let what = format!("Cannot make snapshot {tag}");
    for (argument, name) in [("kernel", &kernel), ("rootfs", &rootfs)] {
        if name.starts_with(['/', '.']) {
            let why = format!("{argument} is {name:?}, and no tool may name files of the host");
            return Err(Failure::new(what, why).next(
                "name a kernel and an image of the daemon's library: `forkd kernel ls` and `forkd image ls` list them, `forkd image \
                 import` makes an image of a file",
            ));
        }
    }
    let wanted = json!({
        "tag": tag,
        "image": rootfs,
        "kernel": (kernel != "default").then_some(kernel),
    });
    // The rest has defaults, which the type alone knows.
    let mut wanted: CreateSnapshot =
        serde_json::from_value(wanted).map_err(|error| Failure::new(&what, error.to_string()))?;
    let making = async {
        match call.client.create_snapshot(&wanted, |_| {}).await {
            // The tool has no argument for it.
            Err(ClientError::Refused(refusal)) if refusal.hint_code == Some(HintCode::NetworkOfHost) => {
                wanted.network = false;
                call.client.create_snapshot(&wanted, |_| {}).await
            }
            made => made,
        }
    };
    let made = call.progress.during("making the snapshot", making).await;
    Ok(Answer::data(&made.map_err(|error| call.failed(what, &error))?))
}

async fn exec(call: &Call<'_>, wanted: Exec) -> Result<Answer, Failure> {
    let Exec { sandbox_id, args, timeout_secs } = wanted;
    if args.is_empty() || !(1..=MAX_SECS).contains(&timeout_secs) {
        return Err(wrong("exec_command", "expected a program in `args`, and `timeout_secs` of 1 to 86400"));
    }
    let mut outcome = run(call, &sandbox_id, Program::Command { args }, timeout_secs).await?;
    let mut shown = json!({
        "stdout": piece(&outcome.stdout, outcome.stdout_left_out),
        "stderr": piece(&outcome.stderr, outcome.stderr_left_out),
        "exit_code": outcome.exit_code,
    });
    if outcome.timed_out {
        shown["error"] = json!(format!("timed out after {timeout_secs} s"));
    }
    Ok(with_rest(call, "exec_command", &mut outcome, Answer::data(&shown)))
}

async fn eval(call: &Call<'_>, wanted: EvalCode) -> Result<Answer, Failure> {
    let EvalCode { sandbox_id, code } = wanted;
    let mut outcome =
        run(call, &sandbox_id, Program::Code { code, language: Language::Python }, CODE_SECS).await?;
    let error = outcome.error.as_ref().map(|error| piece(&error.traceback, 0));
    let shown = json!({
        "result": outcome.values.last().map(|value| piece(value, 0)),
        "error": error,
        "exit_code": i32::from(error.is_some()),
        "stdout": piece(&outcome.stdout, outcome.stdout_left_out),
        "stderr": piece(&outcome.stderr, outcome.stderr_left_out),
    });
    let mut answer = with_rest(call, "eval_code", &mut outcome, Answer::data(&shown));
    answer.content.extend(call.pictures(outcome.pictures));
    Ok(answer)
}

async fn run(call: &Call<'_>, id: &str, program: Program, timeout_secs: u64) -> Result<Outcome, Failure> {
    let what = format!("Cannot run this in sandbox {id}");
    let job = Job { program, env: Default::default(), timeout_secs };
    let running = command::run(&call.client, id, &job, &call.progress);
    call.using(&what, id, running).await?.map_err(|stopped| call.stopped(&what, stopped))
}

/// What fits of one stream. There are at most four in an answer.
fn piece(text: &str, lost: usize) -> String {
    shortened(text, MAX_SHOWN / 4, lost)
}

/// With a link to the whole output if a stream was cut.
fn with_rest(call: &Call<'_>, name: &str, outcome: &mut Outcome, mut answer: Answer) -> Answer {
    let cut = [&outcome.stdout, &outcome.stderr].into_iter().chain(&outcome.values);
    if cut.map(String::len).any(|length| length > MAX_SHOWN / 4) {
        // Nothing of it is shown again.
        let room = Room { shown: 0, ..Room::ALL };
        answer
            .content
            .extend(call.output(name, &outcome.take_text(), outcome.left_out(), room).into_iter().skip(1));
    }
    answer
}

async fn ping(call: &Call<'_>, wanted: OneSandbox) -> Result<Answer, Failure> {
    let begun = Instant::now();
    let program = Program::Command { args: vec!["true".into()] };
    run(call, &wanted.sandbox_id, program, PING_SECS).await?;
    Ok(Answer::data(
        &json!({ "pong": true, "id": wanted.sandbox_id, "latency_ms": begun.elapsed().as_millis() }),
    ))
}

async fn wait_for_text(call: &Call<'_>, wanted: WaitForText) -> Result<Answer, Failure> {
    let WaitForText { sandbox_id, path, marker, timeout_secs, poll_interval_ms } = wanted;
    let fits = (1..=MAX_SECS).contains(&timeout_secs) && (50..=60_000).contains(&poll_interval_ms);
    if marker.is_empty() || marker.len() > MAX_TAIL / 2 || !fits {
        return Err(wrong(
            "wait_for_text",
            "expected a `marker` of 1 to 32768 bytes, `timeout_secs` of 1 to 86400, `poll_interval_ms` of 50 to 60000",
        ));
    }
    let what = format!("Cannot wait for {path} of sandbox {sandbox_id}");
    let begun = Instant::now();
    let polling = async {
        let (mut seen, mut end) = (None, Vec::new());
        loop {
            // One that is not there yet may come.
            let info = match call.client.file_info(&sandbox_id, &path).await {
                Ok(info) => Some((info.size, info.modified_unix)),
                Err(error) if error.code() == Some(forkd_api::error::ErrorCode::FileNotFound) => None,
                Err(error) => return Err(call.failed(&what, &error)),
            };
            // A file of the same second may have changed without a trace.
            if info.is_some() && (info != seen || begun.elapsed() < Duration::from_secs(2)) {
                seen = info;
                end = tail(call, &what, &sandbox_id, &path).await?;
            }
            let text = String::from_utf8_lossy(&end);
            let found = text.contains(&marker);
            if found || begun.elapsed() >= Duration::from_secs(timeout_secs) {
                let excerpt: String = text.chars().rev().take(EXCERPT).collect();
                return Ok((found, excerpt.chars().rev().collect::<String>()));
            }
            tokio::time::sleep(Duration::from_millis(poll_interval_ms)).await;
        }
    };
    let polling = call.progress.during("waiting", polling);
    let (found, last_excerpt) = call.using(&what, &sandbox_id, polling).await??;
    let elapsed_ms = begun.elapsed().as_millis();
    Ok(Answer::data(&json!({ "found": found, "elapsed_ms": elapsed_ms, "last_excerpt": last_excerpt })))
}

/// The end of a file.
async fn tail(call: &Call<'_>, what: &str, id: &str, path: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error| call.failed(what, &error);
    let mut download = call.client.read_file(id, path).await.map_err(failed)?;
    let (mut end, mut read) = (Vec::new(), 0);
    while let Some(piece) = download.next().await.map_err(failed)? {
        read += piece.len();
        if read > MAX_FILE {
            let why = format!("it has more than {} MiB", MAX_FILE >> 20);
            return Err(Failure::new(what, why)
                .next("look for the text with `exec_command`, as in: grep -c TEXT FILE"));
        }
        end.extend_from_slice(&piece);
        if end.len() > 2 * MAX_TAIL {
            end.drain(..end.len() - MAX_TAIL);
        }
    }
    let surplus = end.len().saturating_sub(MAX_TAIL);
    end.drain(..surplus);
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_have_the_references_names_and_arguments() {
        let listed: Vec<(String, Vec<String>)> = definitions()
            .iter()
            .map(|it| {
                let properties = it.tool.input_schema.get("properties").and_then(|it| it.as_object());
                let mut names: Vec<String> =
                    properties.into_iter().flatten().map(|(name, _)| name.clone()).collect();
                names.sort();
                (it.tool.name.to_string(), names)
            })
            .collect();
        let expected: [(&str, &[&str]); 11] = [
            ("list_snapshots", &[]),
            (
                "spawn_sandboxes",
                &["live_fork", "memory_limit_mib", "n", "per_child_netns", "prewarm", "snapshot_tag"],
            ),
            ("branch_sandbox", &["diff", "measure_diff", "mode", "sandbox_id", "tag", "wait"]),
            ("create_snapshot", &["boot_wait_secs", "kernel", "rootfs", "rw", "tag", "tap"]),
            ("wait_for_text", &["marker", "path", "poll_interval_ms", "sandbox_id", "timeout_secs"]),
            ("list_sandboxes", &[]),
            ("get_sandbox", &["sandbox_id"]),
            ("kill_sandbox", &["sandbox_id"]),
            ("exec_command", &["args", "sandbox_id", "timeout_secs"]),
            ("eval_code", &["code", "sandbox_id"]),
            ("ping_sandbox", &["sandbox_id"]),
        ];
        let expected: Vec<(String, Vec<String>)> = expected
            .iter()
            .map(|(name, arguments)| {
                ((*name).to_owned(), arguments.iter().map(|it| (*it).to_owned()).collect())
            })
            .collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn long_lists_have_the_newest_and_say_how_many_are_left_out() {
        let common = crate::call::Common::default();
        let call = crate::call::tests::call(&common);
        let list = |count: usize| {
            let items: Vec<_> = (0..count).map(|item| format!("{item}-{}", "x".repeat(90))).collect();
            list_of(&call, "list", &items).structured.unwrap()
        };
        assert_eq!(list(2), json!({ "result": list(2)["result"] }));
        let long = list(1000);
        let shown = long["result"].as_array().unwrap();
        assert!(shown.len() > 100 && long["result"].to_string().len() <= MAX_SHOWN);
        assert!(shown[shown.len() - 1].as_str().unwrap().starts_with("999-"));
        assert_eq!((&long["truncated"], &long["left_out"]), (&json!(true), &json!(1000 - shown.len())));
    }

    #[test]
    fn arguments_without_effect_are_checked_too() {
        let object = |value: serde_json::Value| value.as_object().cloned();
        let branch: Branch =
            arguments("x", object(json!({ "sandbox_id": "a", "mode": "live", "diff": false }))).unwrap();
        assert!(branch.wait);
        let refused = arguments::<Branch>("x", object(json!({ "sandbox_id": "a", "mode": "quick" })));
        assert!(refused.unwrap_err().to_string().contains("quick"));
    }
}
