//! `forkd snapshot build`.
//!
//! ```text
//!   forkd.toml ─▶ checked ─▶ its images are made, if they are missing ─▶ images and snapshots that it names are looked for
//!              ─▶ each step is built, parents first
//! ```
//!
//! No snapshot is made before everything is checked. Each step is one request, which is based on the tag of its parent: a name may mean another
//! snapshot in the next moment.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use forkd_api::code::Language;
use forkd_api::error::ErrorCode;
use forkd_api::snapshot::{
    BuildOutcome, BuildSnapshot, BuiltSnapshot, Cpu, CreateSnapshot, Progress as SnapshotProgress,
    ReadyProbe, WarmUp,
};
use forkd_client::{Client, ClientError};
use forkd_source::chain::{self, Chain, ChainStep, Code, OF_IMAGES, Parent, TEMPLATE};
use forkd_source::recipe::{self, Probe};
use serde::Serialize;

use crate::arguments::SnapshotBuildOptions;
use crate::commands::image::declared::{self, DeclaredImage};
use crate::commands::{asynchronously, e2b, print_value};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Side, Table};

use super::make;

/// No file of code is larger.
const MAX_CODE: u64 = 1 << 20;

/// What was built, in this order.
#[derive(Debug, Serialize)]
pub struct BuiltChain {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<DeclaredImage>,
    pub snapshots: Vec<BuiltStep>,
}

/// A snapshot, and how long its making took.
#[derive(Debug, Serialize)]
pub struct BuiltStep {
    #[serde(flatten)]
    pub built: BuiltSnapshot,
    /// Empty if it was not made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepTime>,
}

/// How long a step took, as this command saw it.
#[derive(Debug, Clone, Serialize)]
pub struct StepTime {
    pub step: String,
    pub milliseconds: u64,
}

/// Which daemon a build may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// One that is there.
    No,
    /// A running daemon, or one that is started for this.
    Yes,
}

pub fn run(options: &SnapshotBuildOptions) -> Result<Exit, CliError> {
    let chain = make(options, Start::No)?;
    print_value(&options.output, &chain, || render(&chain, options.dry_run))?;
    Ok(Exit::Success)
}

/// Builds what the options name.
pub fn make(options: &SnapshotBuildOptions, start: Start) -> Result<BuiltChain, CliError> {
    let Chain { images, snapshots } = chain::read(&options.file)?;
    let steps = select(snapshots, options)?;
    let code = steps.iter().map(|step| warm_up(step, &options.file)).collect::<Result<Vec<_>, _>>()?;
    let images = chain::images_of(images, &steps);
    let images = declared::make_missing(&options.daemon, &images, &options.file, options.dry_run)?;
    if !options.dry_run && steps.iter().any(|step| step.from == Parent::Template) {
        e2b::setup::ensure(&options.daemon)?;
    }
    let snapshots = asynchronously(async {
        let client = match start {
            Start::No => daemon::find(&options.daemon).await?,
            Start::Yes => daemon::find_or_start(&options.daemon).await?,
        };
        let mut orders = Vec::new();
        for (step, code) in steps.iter().zip(code) {
            orders.push(order(&client, step, code, &images, options).await?);
        }
        build_all(&client, &steps, orders, options).await
    })?;
    Ok(BuiltChain { images, snapshots })
}

fn select(steps: Vec<ChainStep>, options: &SnapshotBuildOptions) -> Result<Vec<ChainStep>, CliError> {
    let known = steps.iter().map(|step| step.name.clone()).collect::<Vec<_>>().join(", ");
    chain::select(steps, &options.names).map_err(|name| CliError::NoStep {
        path: options.file.clone(),
        name,
        known,
    })
}

async fn build_all(
    client: &Client,
    steps: &[ChainStep],
    orders: Vec<Option<CreateSnapshot>>,
    options: &SnapshotBuildOptions,
) -> Result<Vec<BuiltStep>, CliError> {
    // The tags of existing snapshots, by the names of their steps. Those that would be made have no tags yet.
    let mut tags: BTreeMap<&str, Option<String>> = BTreeMap::new();
    let mut snapshots = Vec::new();
    for (step, contents) in steps.iter().zip(orders) {
        let parent = match &step.from {
            Parent::Step(parent) => Some(tags.get(parent.as_str()).cloned().flatten()),
            _ => None,
        };
        let built = match (parent, contents) {
            // Its key is not known before its parent or its image is there.
            (Some(None), _) | (_, None) => would_be_made(&step.name),
            (parent, Some(mut contents)) => {
                contents.snapshot = parent.flatten().or(contents.snapshot);
                build(client, &step.name, contents, options).await?
            }
        };
        tags.insert(&step.name, built.built.snapshot.as_ref().map(|snapshot| snapshot.tag.clone()));
        snapshots.push(built);
    }
    Ok(snapshots)
}

fn would_be_made(name: &str) -> BuiltStep {
    let (name, outcome) = (name.to_owned(), BuildOutcome::Made);
    BuiltStep {
        built: BuiltSnapshot { name, outcome, key: None, snapshot: None, replaced: None },
        steps: Vec::new(),
    }
}

async fn build(
    client: &Client,
    name: &str,
    contents: CreateSnapshot,
    options: &SnapshotBuildOptions,
) -> Result<BuiltStep, CliError> {
    let SnapshotBuildOptions { no_cache, dry_run, .. } = *options;
    let wanted = BuildSnapshot { name: name.to_owned(), contents, no_cache, dry_run };
    let (progress, begun) = (Progress::new(), Mutex::new(Vec::new()));
    let built = client.build_snapshot(&wanted, |told| {
        if let (SnapshotProgress::Step(step), Ok(mut begun)) = (&told, begun.lock()) {
            begun.push((step.clone(), Instant::now()));
        }
        make::show(&progress, name, told);
    });
    let built = built.await;
    progress.finish();
    let steps = durations(begun.into_inner().unwrap_or_default(), Instant::now());
    Ok(BuiltStep { built: built?, steps })
}

/// Each step takes until the next one begins, and the last one until the end.
fn durations(begun: Vec<(String, Instant)>, end: Instant) -> Vec<StepTime> {
    let ends: Vec<Instant> = begun.iter().skip(1).map(|(_, at)| *at).chain([end]).collect();
    let time = |((step, at), end): ((String, Instant), Instant)| StepTime {
        step,
        milliseconds: u64::try_from(end.duration_since(at).as_millis()).unwrap_or(u64::MAX),
    };
    begun.into_iter().zip(ends).map(time).collect()
}

/// What a step is made of. What it is from is there, unless it is another step. Nothing if its image or template would be made first.
async fn order(
    client: &Client,
    step: &ChainStep,
    warm_up: Vec<WarmUp>,
    images: &[DeclaredImage],
    options: &SnapshotBuildOptions,
) -> Result<Option<CreateSnapshot>, CliError> {
    let path = &options.file;
    let missing = |what: &str, name: &str| {
        let problem = format!("no {what} is named {name:?}; see forkd image ls and forkd snapshot ls");
        CliError::from(step.wrong(path, "from", problem))
    };
    let (image, snapshot) = match &step.from {
        Parent::Step(_) => (None, None),
        Parent::ImageStep(name) => match images.iter().find(|image| image.name == *name) {
            Some(DeclaredImage { id: Some(id), .. }) => (Some(id.clone()), None),
            _ => return Ok(None),
        },
        Parent::Template => match found(client.snapshot(TEMPLATE).await)? {
            Some(snapshot) => (None, Some(snapshot.tag)),
            None if options.dry_run => return Ok(None),
            None => return Err(missing("template", TEMPLATE)),
        },
        Parent::Image(name) => match found(client.image(name).await)? {
            Some(image) => (Some(image.summary.id), None),
            None => return Err(missing("image", name)),
        },
        Parent::Snapshot(name) => match found(client.snapshot(name).await)? {
            Some(snapshot) => (None, Some(snapshot.tag)),
            None => return Err(missing("snapshot", name)),
        },
        Parent::Either(name) => match found(client.image(name).await)? {
            Some(image) => (Some(image.summary.id), None),
            None => match found(client.snapshot(name).await)? {
                Some(snapshot) => (None, Some(snapshot.tag)),
                None => return Err(missing("table, image or snapshot", name)),
            },
        },
    };
    if let (Some(_), Some(key)) = (&snapshot, step.image_key()) {
        return Err(step.wrong(path, key, OF_IMAGES).into());
    }
    Ok(Some(contents(step, image, snapshot, warm_up)))
}

fn found<T>(answer: Result<T, ClientError>) -> Result<Option<T>, CliError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        // A name that cannot be one means nothing either.
        Err(ClientError::Refused(refusal))
            if matches!(refusal.code, Some(ErrorCode::NotFound | ErrorCode::Malformed)) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

fn contents(
    step: &ChainStep,
    image: Option<String>,
    snapshot: Option<String>,
    warm_up: Vec<WarmUp>,
) -> CreateSnapshot {
    CreateSnapshot {
        tag: None,
        image,
        snapshot,
        kernel: step.kernel.clone(),
        vcpus: step.vcpus,
        memory_mib: step.memory_mib,
        disk_mib: step.disk_mib,
        cpu: match step.cpu {
            None | Some(chain::Cpu::Host) => Cpu::Host,
            Some(chain::Cpu::V2) => Cpu::V2,
            Some(chain::Cpu::V3) => Cpu::V3,
        },
        env: step.env.clone(),
        start: step.start.clone(),
        ready: step.ready.as_ref().map(|ready| {
            let (port, command) = match &ready.probe {
                Probe::Port(port) => (Some(*port), None),
                Probe::Command(command) => (None, Some(command.clone())),
            };
            ReadyProbe { port, command, timeout_secs: Some(ready.timeout_seconds) }
        }),
        run: step.run.clone(),
        warm_up,
        host_certs: step.host_certs,
        e2b: step.e2b,
        network: step.network.unwrap_or(true),
        wait: true,
    }
}

/// The code of a step's warm-up. Files are beside the file that names them.
fn warm_up(step: &ChainStep, path: &Path) -> Result<Vec<WarmUp>, CliError> {
    let directory = path.parent().unwrap_or(Path::new(""));
    let read = |one: &chain::WarmUp| {
        let code = match &one.code {
            Code::Text(text) => text.clone(),
            Code::File(file) => {
                let file = directory.join(file);
                read_code(&file).map_err(|source| {
                    step.wrong(path, "warm_up", format!("cannot read {}: {source}", file.display()))
                })?
            }
        };
        let language = match one.language {
            recipe::Language::Python => Language::Python,
            recipe::Language::Javascript => Language::Javascript,
            recipe::Language::Typescript => Language::Typescript,
            recipe::Language::Bash => Language::Bash,
            recipe::Language::R => Language::R,
            recipe::Language::Java => Language::Java,
        };
        Ok(WarmUp { language, code })
    };
    step.warm_up.iter().map(read).collect()
}

fn read_code(path: &Path) -> std::io::Result<String> {
    let mut code = String::new();
    std::fs::File::open(path)?.take(MAX_CODE + 1).read_to_string(&mut code)?;
    match code.len() as u64 > MAX_CODE {
        true => Err(std::io::ErrorKind::FileTooLarge.into()),
        false => Ok(code),
    }
}

pub fn render(chain: &BuiltChain, dry_run: bool) -> String {
    let title = if dry_run { "WOULD BE" } else { "RESULT" };
    let mut text = String::new();
    if !chain.images.is_empty() {
        let mut table = Table::new([("NAME", Side::Left), (title, Side::Left), ("IMAGE", Side::Left)]);
        for one in &chain.images {
            table.row([one.name.clone(), one.outcome.name().into(), one.image.clone()]);
        }
        text = table.render() + "\n";
    }
    let mut table = Table::new([("NAME", Side::Left), (title, Side::Left), ("SNAPSHOT", Side::Left)]);
    for BuiltStep { built, .. } in &chain.snapshots {
        let tag = built.snapshot.as_ref().map_or("-", |snapshot| snapshot.tag.as_str());
        table.row([built.name.clone(), built.outcome.name().into(), tag.into()]);
    }
    text + &table.render()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_step_takes_until_the_next_one() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let begun = vec![("boot".to_owned(), at(0)), ("freeze".to_owned(), at(30))];
        let took: Vec<_> =
            durations(begun, at(35)).into_iter().map(|one| (one.step, one.milliseconds)).collect();
        assert_eq!(took, [("boot".to_owned(), 30), ("freeze".to_owned(), 5)]);
        assert!(durations(Vec::new(), begin).is_empty());
    }

    #[test]
    fn the_template_of_files_is_the_one_that_setup_makes() {
        assert_eq!(TEMPLATE, e2b::setup::TAG);
    }
}
