//! `forkd snapshot build`.
//!
//! ```text
//!   forkd.toml ─▶ checked ─▶ images and snapshots that it names are looked for ─▶ each step is built, parents first
//! ```
//!
//! Nothing is made before everything is checked. Each step is one request, which is based on the tag of its parent: a name may mean another
//! snapshot in the next moment.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use forkd_api::code::Language;
use forkd_api::error::ErrorCode;
use forkd_api::snapshot::{
    BuildOutcome, BuildSnapshot, BuiltSnapshot, Cpu, CreateSnapshot, ReadyProbe, WarmUp,
};
use forkd_client::{Client, ClientError};
use forkd_source::chain::{self, ChainStep, Code, OF_IMAGES, Parent};
use forkd_source::recipe::{self, Probe};
use serde::Serialize;

use crate::arguments::SnapshotBuildOptions;
use crate::commands::{print_value, with_daemon};
use crate::error::CliError;
use crate::exit::Exit;
use crate::progress::Progress;
use crate::table::{Side, Table};

use super::make;

/// No file of code is larger.
const MAX_CODE: u64 = 1 << 20;

/// What was built, in this order.
#[derive(Debug, Serialize)]
struct BuiltChain {
    snapshots: Vec<BuiltSnapshot>,
}

pub fn run(options: &SnapshotBuildOptions) -> Result<Exit, CliError> {
    let steps = select(chain::read(&options.file)?, options)?;
    let code = steps.iter().map(|step| warm_up(step, &options.file)).collect::<Result<Vec<_>, _>>()?;
    let chain = with_daemon(&options.daemon, async |client| {
        let mut orders = Vec::new();
        for (step, code) in steps.iter().zip(code) {
            orders.push(order(&client, step, code, &options.file).await?);
        }
        build_all(&client, &steps, orders, options).await
    })?;
    print_value(&options.output, &chain, || render(&chain.snapshots, options.dry_run))?;
    Ok(Exit::Success)
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
    orders: Vec<CreateSnapshot>,
    options: &SnapshotBuildOptions,
) -> Result<BuiltChain, CliError> {
    // The tags of what is there, by the names of the steps. Of what would be made, there is none.
    let mut tags: BTreeMap<&str, Option<String>> = BTreeMap::new();
    let mut snapshots = Vec::new();
    for (step, mut contents) in steps.iter().zip(orders) {
        let parent = match &step.from {
            Parent::Step(parent) => Some(tags.get(parent.as_str()).cloned().flatten()),
            _ => None,
        };
        let built = match parent {
            // Its key is not known before its parent is there.
            Some(None) => would_be_made(&step.name),
            parent => {
                contents.snapshot = parent.flatten().or(contents.snapshot);
                build(client, &step.name, contents, options).await?
            }
        };
        tags.insert(&step.name, built.snapshot.as_ref().map(|snapshot| snapshot.tag.clone()));
        snapshots.push(built);
    }
    Ok(BuiltChain { snapshots })
}

fn would_be_made(name: &str) -> BuiltSnapshot {
    let (name, outcome) = (name.to_owned(), BuildOutcome::Made);
    BuiltSnapshot { name, outcome, key: None, snapshot: None, replaced: None }
}

async fn build(
    client: &Client,
    name: &str,
    contents: CreateSnapshot,
    options: &SnapshotBuildOptions,
) -> Result<BuiltSnapshot, CliError> {
    let SnapshotBuildOptions { no_cache, dry_run, .. } = *options;
    let wanted = BuildSnapshot { name: name.to_owned(), contents, no_cache, dry_run };
    let progress = Progress::new();
    let built = client.build_snapshot(&wanted, |told| make::show(&progress, name, told)).await;
    progress.finish();
    Ok(built?)
}

/// What a step is made of. What it is from is there, unless it is another step.
async fn order(
    client: &Client,
    step: &ChainStep,
    warm_up: Vec<WarmUp>,
    path: &Path,
) -> Result<CreateSnapshot, CliError> {
    let missing = |what: &str, name: &str| {
        let problem = format!("there is no {what} {name:?}; see forkd image ls and forkd snapshot ls");
        CliError::from(step.wrong(path, "from", problem))
    };
    let (image, snapshot) = match &step.from {
        Parent::Step(_) => (None, None),
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
    Ok(contents(step, image, snapshot, warm_up))
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

fn render(built: &[BuiltSnapshot], dry_run: bool) -> String {
    let title = if dry_run { "WOULD BE" } else { "RESULT" };
    let mut table = Table::new([("NAME", Side::Left), (title, Side::Left), ("SNAPSHOT", Side::Left)]);
    for one in built {
        let tag = one.snapshot.as_ref().map_or("-", |snapshot| snapshot.tag.as_str());
        table.row([one.name.clone(), one.outcome.name().into(), tag.into()]);
    }
    table.render()
}
