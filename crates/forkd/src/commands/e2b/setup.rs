//! `forkd e2b setup`: the template that E2B's clients take if nothing else is said.

use forkd_api::code::Language;
use forkd_api::snapshot::{CreateSnapshot, Snapshot, WarmUp};

use crate::arguments::{DaemonOptions, E2bSetupOptions, Output, SnapshotShape};
use crate::commands::{asynchronously, branch, say, snapshot};
use crate::daemon;
use crate::error::CliError;
use crate::exit::Exit;

/// The template of the code interpreter. The daemon takes it for `base`, too, unless there is one of that name.
pub const TAG: &str = "code-interpreter-v1";
/// Plots and models need room.
const MEMORY_MIB: u64 = 1024;
/// What the interpreter has loaded before the first sandbox asks for it. Images of users may lack some of it.
const WARM_UP: &str = "for _name in ('numpy', 'pandas', 'matplotlib.pyplot', 'requests', 'PIL.Image', 'sklearn'):\n    \
                       try:\n        __import__(_name)\n    except ImportError:\n        pass\ndel _name";

pub fn run(options: &E2bSetupOptions) -> Result<Exit, CliError> {
    let snapshot = find_or_make(options)?;
    say(&format!("{TAG} is ready; programs find it after: eval \"$(forkd e2b env)\""));
    branch::show(&snapshot, &options.output)?;
    Ok(Exit::Success)
}

/// Sees to it that there is the template, of the usual image.
pub fn ensure(daemon: &DaemonOptions) -> Result<(), CliError> {
    let (daemon, output) = (daemon.clone(), Output { json: false });
    let shape = SnapshotShape::default();
    find_or_make(&E2bSetupOptions { image: None, debian_node: false, shape, daemon, output }).map(drop)
}

fn find_or_make(options: &E2bSetupOptions) -> Result<Snapshot, CliError> {
    let found = asynchronously(async {
        let client = daemon::find_or_start(&options.daemon).await?;
        match client.snapshot(TAG).await {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error.into()),
        }
    })?;
    match found {
        Some(snapshot) => Ok(snapshot),
        None => make(options),
    }
}

fn make(options: &E2bSetupOptions) -> Result<Snapshot, CliError> {
    let image = match &options.image {
        Some(image) => image.clone(),
        None => super::image::ensure(&options.daemon, options.debian_node)?.to_owned(),
    };
    asynchronously(async {
        let client = daemon::find_or_start(&options.daemon).await?;
        let of_image = snapshot::make::of_image(&image, &options.shape);
        let wanted = CreateSnapshot {
            tag: Some(TAG.to_owned()),
            memory_mib: of_image.memory_mib.or(Some(MEMORY_MIB)),
            e2b: true,
            warm_up: vec![WarmUp { language: Language::Python, code: WARM_UP.to_owned() }],
            ..of_image
        };
        snapshot::make::make(&client, &wanted).await
    })
}
