//! Snapshots are made of images, or of other snapshots (`derive.rs`).
//!
//! If the caller disconnects early, the work is cancelled and its files are removed. With an idempotency key and without a
//! stream, it continues.

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use forkd_api::error::ErrorBody;
use forkd_api::snapshot as seen;
use forkd_api::snapshot::{Cpu, CreateSnapshot, Progress, ReadyProbe, Snapshot, UNNAMED_PREFIX};
use forkd_api::token::Scope;
use forkd_engine::bring_up::WarmUp;
use forkd_engine::library::{DefaultAccount, Recipe, UNNAMED};
use forkd_engine::project::Project;
use forkd_engine::{EngineError, SnapshotHandle, Step, Steps};
use forkd_image::digest::Digest;
use forkd_proto::agent::account::Account;
use forkd_proto::agent::startup::{Probe, Ready};
use forkd_proto::control::CpuModel;
use forkd_store::Tag;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::app::Shared;
use crate::auth::Caller;
use crate::error::{Answer, ApiError};
use crate::extract::Json;
use crate::ndjson;
use crate::routes::checks::{self, malformed, within};
use crate::routes::images::look;
use crate::routes::responses::MakeErrors;
use crate::routes::snapshots::derive::{self, Derivation};
use crate::routes::snapshots::describe;
use crate::trace::{Phases, RequestTrace};

const MAX_VCPUS: u8 = 32;
/// A TiB.
const MAX_MIB: u64 = 1 << 20;
const MIN_MEMORY_MIB: u64 = 64;
const MAX_WARM_UP: usize = 64;
const MAX_RUN: usize = 64;
/// Less than the kernel allows for one argument.
const MAX_COMMAND: usize = 100 << 10;
const READY_SECS: u64 = 60;
const MAX_READY_SECS: u64 = 3600;
/// A line of what a warm-up prints that has no end yet.
const MAX_LINE: usize = 16 << 10;
/// The last step, if it is waited for.
pub(super) const WRITE: &str = "write";
/// What is told and not read yet.
const QUEUE: usize = 16;

pub(super) type ProgressSender = mpsc::Sender<Progress>;

/// Makes a snapshot: boots an image of the library, or forks another snapshot.
///
/// With `Accept: application/x-ndjson`, the response is a stream of Progress with status 200, whose last line is the snapshot or
/// the error.
#[utoipa::path(
    post,
    path = "/v1/snapshots",
    tag = "snapshots",
    operation_id = "create_snapshot",
    params(("Idempotency-Key" = Option<String>, Header, description = "Requests with the same key get the same answer")),
    request_body = CreateSnapshot,
    responses(
        (status = 200, description = "Lines of JSON, if requested", body = Progress, content_type = "application/x-ndjson"),
        (status = 201, description = "The snapshot: it can be forked, and with `wait` it is on disk", body = Snapshot),
        MakeErrors,
        (status = 409, description = "The tag is in use", body = ErrorBody),
    )
)]
pub(super) async fn create(
    State(app): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Json(wanted): Json<CreateSnapshot>,
) -> Answer<Response> {
    if wanted.host_certs {
        caller.require(Scope::Admin)?;
    }
    let wait = wanted.wait;
    let how = if wanted.tag.is_some() { How::New } else { How::OnceByContents };
    let wanted = match wanted.snapshot {
        Some(_) => SnapshotRequest::Derived(Box::new(derive::convert(&app, &caller, wanted)?)),
        None => SnapshotRequest::Booted(Box::new(convert(wanted)?), how),
    };
    let work = app.clone();
    let making = move |told| async move { make_wanted(&work, &caller, wanted, wait, told).await };
    answer(app, &headers, making, StatusCode::CREATED, |made| Progress::Snapshot(Box::new(made))).await
}

/// The answer to a request that makes something: what is made, or a stream whose last line is that.
pub(super) async fn answer<T, F>(
    app: Shared,
    headers: &HeaderMap,
    making: impl FnOnce(ProgressSender) -> F + Send + 'static,
    status: StatusCode,
    last: impl FnOnce(T) -> Progress + Send + 'static,
) -> Answer<Response>
where
    T: Serialize + Send + 'static,
    F: Future<Output = Answer<T>> + Send + 'static,
{
    let (told, mut heard) = mpsc::channel(QUEUE);
    if !ndjson::is_wanted(headers) {
        let unheard = async { while heard.recv().await.is_some() {} };
        let (made, ()) = tokio::join!(making(told), unheard);
        return Ok((status, Json(made?)).into_response());
    }
    Ok(ndjson::answer(move |lines| async move {
        let tell = async {
            while let Some(progress) = heard.recv().await {
                if lines.write(&progress).await.is_err() {
                    return;
                }
            }
        };
        let (made, ()) = tokio::join!(making(told), tell);
        let last = match made {
            Ok(made) => last(made),
            Err(error) => {
                app.metrics.failed(error.code());
                Progress::Error(error.logged())
            }
        };
        // Who has gone does not need it.
        let _ = lines.write(&last).await;
    }))
}

/// What is asked for.
enum SnapshotRequest {
    Booted(Box<Recipe>, How),
    Derived(Box<Derivation>),
}

async fn make_wanted(
    app: &Shared,
    caller: &Caller,
    wanted: SnapshotRequest,
    wait: bool,
    told: ProgressSender,
) -> Answer<Snapshot> {
    match wanted {
        SnapshotRequest::Booted(recipe, how) => make(app, caller, *recipe, how, wait, told).await,
        SnapshotRequest::Derived(wanted) => derive::make(app, caller, *wanted, wait, told).await,
    }
}

/// Whether a snapshot is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Its tag must be free.
    New,
    /// One that has the tag already, or is being made, will do.
    Once,
    /// The same, with a tag that says what it is made of. That of the recipe does not count.
    OnceByContents,
}

/// Makes a snapshot, and tells what it does.
pub async fn make(
    app: &Shared,
    caller: &Caller,
    recipe: Recipe,
    how: How,
    wait: bool,
    told: ProgressSender,
) -> Answer<Snapshot> {
    let recipe = with_image(app, caller, recipe, how).await?;
    let owner = app.own(caller);
    make_telling(app, caller, wait, told, async move |steps| match how {
        How::New => Ok(app.engine.make_of(&app.library, recipe, &owner, &steps).await?),
        How::Once | How::OnceByContents => {
            let work = app.clone();
            let once = async move { work.engine.make_once(&work.library, recipe, &owner, &steps).await };
            app.to_its_end(once).await?.map_err(|error| ApiError::from(&*error))
        }
    })
    .await
}

/// A recipe with the id of its image: a name may mean another one in the next moment.
pub(super) async fn with_image(app: &Shared, caller: &Caller, recipe: Recipe, how: How) -> Answer<Recipe> {
    let asked = caller.clone();
    look(app, move |app| {
        let image = app.image(&asked, &recipe.image)?.id();
        let tag = tag(&recipe, how, &image, &asked.project)?;
        Ok(Recipe { tag, image: image.to_string(), ..recipe })
    })
    .await
}

/// Makes a snapshot in some way, and tells its steps.
pub(super) async fn make_telling(
    app: &Shared,
    caller: &Caller,
    wait: bool,
    told: ProgressSender,
    making: impl AsyncFnOnce(Steps) -> Answer<SnapshotHandle>,
) -> Answer<Snapshot> {
    let (made, mut phases) = tell_steps(&told, making).await;
    let view = match made {
        Ok(made) if wait => {
            phases.next(WRITE);
            tell(&told, WRITE).await;
            made.durable().await.map_err(ApiError::from)
        }
        made => made.map(|made| made.view()),
    };
    RequestTrace::current().made(phases);
    describe(app, caller, view?).await
}

/// Tells the steps of something, and takes their times.
pub(super) async fn tell_steps<T>(
    told: &ProgressSender,
    making: impl AsyncFnOnce(Steps) -> T,
) -> (T, Phases) {
    let (steps, mut taken) = mpsc::channel(QUEUE);
    let mut phases = Phases::begin();
    let telling = async {
        let mut output = Output::default();
        while let Some(step) = taken.recv().await {
            match step {
                Step::Begins(step) => {
                    phases.next(&step);
                    say(told, output.finish()).await;
                    tell(told, &step).await;
                }
                Step::Printed(text) => say(told, output.add(&text)).await,
            }
        }
        say(told, output.finish()).await;
    };
    let (made, ()) = tokio::join!(making(steps), telling);
    (made, phases)
}

/// The tag that a snapshot of this image gets.
fn tag(recipe: &Recipe, how: How, image: &Digest, project: &Project) -> Answer<Tag> {
    match how {
        How::New | How::Once => Ok(recipe.tag.clone()),
        How::OnceByContents => {
            Ok(recipe.tag_of_contents(UNNAMED_PREFIX, image, project).map_err(EngineError::Tag)?)
        }
    }
}

async fn tell(told: &ProgressSender, step: &str) {
    // Who does not listen any more is noticed elsewhere.
    let _ = told.send(Progress::Step(step.to_owned())).await;
}

async fn say(told: &ProgressSender, lines: Vec<String>) {
    for line in lines {
        let _ = told.send(Progress::Output(line)).await;
    }
}

/// What a guest prints, as lines. One that does not end is cut.
#[derive(Default)]
struct Output(String);

impl Output {
    /// The lines that this piece ends.
    fn add(&mut self, piece: &str) -> Vec<String> {
        self.0.push_str(piece);
        let mut lines: Vec<String> = Vec::new();
        while let Some(end) = self.0.find('\n') {
            let line: String = self.0.drain(..=end).collect();
            lines.push(line.trim_end_matches(['\r', '\n']).to_owned());
        }
        if self.0.len() > MAX_LINE {
            lines.append(&mut self.finish());
        }
        lines
    }

    /// The rest, if there is any.
    fn finish(&mut self) -> Vec<String> {
        let rest = std::mem::take(&mut self.0);
        if rest.is_empty() { Vec::new() } else { vec![rest] }
    }
}

pub(super) fn convert(wanted: CreateSnapshot) -> Answer<Recipe> {
    let CreateSnapshot {
        tag,
        image,
        kernel,
        vcpus,
        memory_mib,
        disk_mib,
        cpu,
        env,
        start,
        ready,
        run,
        warm_up,
        host_certs,
        e2b,
        network,
        snapshot: _,
        wait: _,
    } = wanted;
    let image = image.ok_or_else(|| malformed("expected one of image and snapshot"))?;
    checks::env(&env)?;
    if let Some(start) = &start {
        checks::command("start", start)?;
    }
    check_run(&run)?;
    let warm_up = convert_warm_up(warm_up)?;
    let mib = |name, least| move |mib| within(name, mib, least..=MAX_MIB);
    Ok(Recipe {
        tag: tag.as_deref().unwrap_or(UNNAMED).parse().map_err(EngineError::Tag)?,
        image,
        kernel,
        vcpus: vcpus.map(|vcpus| within("vcpus", vcpus, 1..=MAX_VCPUS)).transpose()?,
        memory_mib: memory_mib.map(mib("memory_mib", MIN_MEMORY_MIB)).transpose()?,
        disk_mib: disk_mib.map(mib("disk_mib", 1)).transpose()?,
        cpu: match cpu {
            Cpu::Host => CpuModel::Host,
            Cpu::V2 => CpuModel::V2,
            Cpu::V3 => CpuModel::V3,
        },
        env,
        start,
        ready: ready.map(convert_ready).transpose()?,
        run,
        warm_up,
        account: e2b.then(|| DefaultAccount { account: Account::e2b(), keeps_image_user: false }),
        host_certs,
        network,
    })
}

/// Refuses commands that cannot be run.
pub(super) fn check_run(run: &[String]) -> Answer<()> {
    if run.len() > MAX_RUN {
        return Err(malformed(format!("run takes at most {MAX_RUN} commands")));
    }
    match run.iter().find(|command| command.trim().is_empty() || command.len() > MAX_COMMAND) {
        Some(_) => Err(malformed(format!("a command of run must have 1 to {MAX_COMMAND} bytes"))),
        None => Ok(()),
    }
}

pub(super) fn convert_warm_up(warm_up: Vec<seen::WarmUp>) -> Answer<Vec<WarmUp>> {
    if warm_up.len() > MAX_WARM_UP {
        return Err(malformed(format!("warm_up takes at most {MAX_WARM_UP} entries")));
    }
    Ok(warm_up.into_iter().map(|one| WarmUp::new(one.language.name(), one.code)).collect())
}

fn convert_ready(ready: ReadyProbe) -> Answer<Ready> {
    let probe = match (ready.port, ready.command) {
        (Some(port), None) => Probe::Port(within("ready.port", port, 1..=u16::MAX)?),
        (None, Some(command)) => {
            checks::command("ready.command", &command)?;
            Probe::Command(command)
        }
        _ => return Err(malformed("ready takes exactly one of port and command")),
    };
    let seconds = within("ready.timeout_secs", ready.timeout_secs.unwrap_or(READY_SECS), 1..=MAX_READY_SECS)?;
    Ok(Ready { probe, timeout_ms: seconds * 1000 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert_json(json: &str) -> Answer<Recipe> {
        let text = format!(r#"{{"tag": "t", "image": "i"{json}}}"#);
        convert(serde_json::from_str(&text).unwrap())
    }

    #[test]
    fn output_is_told_by_lines() {
        let mut output = Output::default();
        assert_eq!(output.add("one\ntw"), ["one"]);
        assert_eq!(output.add("o\r\n\nthree"), ["two", ""]);
        assert_eq!(output.finish(), ["three"]);
        assert_eq!(output.finish(), [""; 0]);
        assert_eq!(output.add(&"x".repeat(MAX_LINE + 1)), ["x".repeat(MAX_LINE + 1)]);
    }

    #[test]
    fn recipes_are_taken_as_they_are_said() {
        let recipe = convert_json(
            r#", "vcpus": 2, "memory_mib": 64, "start": ["x"], "ready": {"port": 80, "timeout_secs": 5},
               "warm_up": [{"language": "javascript", "code": "1"}]"#,
        );
        let recipe = recipe.unwrap();
        assert_eq!(recipe.cpu, CpuModel::Host);
        assert_eq!(convert_json(r#", "cpu": "x86-64-v3""#).unwrap().cpu, CpuModel::V3);
        assert_eq!((recipe.vcpus, recipe.memory_mib, recipe.disk_mib), (Some(2), Some(64), None));
        let ready = recipe.ready.unwrap();
        assert_eq!((ready.probe, ready.timeout_ms), (Probe::Port(80), 5000));
        assert_eq!((recipe.warm_up[0].language.as_str(), recipe.account), ("javascript", None));
        assert!(convert_json(r#", "e2b": true"#).unwrap().account.is_some());
    }

    #[test]
    fn only_a_snapshot_without_a_tag_is_named_after_what_it_is_made_of() {
        let of = |json: &str, how| {
            let recipe = convert(serde_json::from_str(json).unwrap()).unwrap();
            tag(&recipe, how, &Digest::of(b"image"), &Project::default()).unwrap().to_string()
        };
        assert!(of(r#"{"image": "python:3.12"}"#, How::OnceByContents).starts_with("run-python-3.12-"));
        for name in [UNNAMED, "t"] {
            let json = format!(r#"{{"image": "i", "tag": "{name}"}}"#);
            assert_eq!((of(&json, How::New), of(&json, How::Once)), (name.to_owned(), name.to_owned()));
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_words() {
        for (json, says) in [
            (r#", "vcpus": 0"#, "vcpus is 0"),
            (r#", "vcpus": 33"#, "vcpus is 33"),
            (r#", "memory_mib": 63"#, "memory_mib is 63"),
            (r#", "memory_mib": 18446744073709551615"#, "memory_mib is"),
            (r#", "disk_mib": 0"#, "disk_mib is 0"),
            (r#", "start": []"#, "start must begin with"),
            (r#", "ready": {}"#, "one of port and command"),
            (r#", "ready": {"port": 1, "command": ["x"]}"#, "one of port and command"),
            (r#", "ready": {"port": 0}"#, "ready.port is 0"),
            (r#", "ready": {"command": [""]}"#, "ready.command must begin with"),
            (r#", "ready": {"port": 1, "timeout_secs": 0}"#, "ready.timeout_secs is 0"),
            (r#", "env": {"": "x"}"#, "env has"),
            (r#", "run": [" "]"#, "a command of run must have"),
        ] {
            let error = convert_json(json).unwrap_err();
            assert_eq!(error.code().status(), 400, "{json}");
            assert!(error.to_string().contains(says), "{json}: {error}");
        }
        let nothing: CreateSnapshot = serde_json::from_str(r#"{"tag": "t"}"#).unwrap();
        assert!(convert(nothing).unwrap_err().to_string().contains("one of image and snapshot"));
        let wrong: CreateSnapshot = serde_json::from_str(r#"{"tag": "A B", "image": "i"}"#).unwrap();
        assert!(convert(wrong).unwrap_err().to_string().contains("is not a tag"));
    }
}
